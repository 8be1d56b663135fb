// Package pages stores the memory in directories of CRIU's images in less room. It reads
// and writes files and starts nothing; CRIU restores from what it makes as from a dump.
//
// Words: a dump is a directory that CRIU wrote, with all pages. A pagemap lists the pages
// of a process, or of a shared object (anonymous shared memory, memfd, System V); their
// content is in one pages file, one after the other, so a pagemap can't have a page twice
// or in another order. An entry may say "in parent": then the directory named parent has
// a pagemap of the same name, with that page. A base is a compacted dump that refers to no
// other one.
//
// Compact makes a new directory of a dump. What it does, and why it is the same to the
// processes:
//
//   - Pages of zeros are left out of private anonymous mappings and of shared objects. CRIU
//     makes these anew, empty, and a page that nothing was read into reads as zero. Where a
//     mapping is inherited from the parent process, CRIU drops the pages that the parent
//     has and the child has not (restore_priv_vma_content), so these read as zero too. All
//     else keeps its zeros: in a private mapping of a file a page that is absent is the
//     file's; vDSO, AIO rings, shadow stacks, huge pages and kinds not yet known are special.
//     Guard regions have no pages; they are put in place after all content. A process is
//     never left without any page, which CRIU can't take. What differs: memory in use,
//     mincore and such; a page of zeros is charged when it is touched next.
//   - Pages that the base has at the same address of the same process are "in parent". Every
//     byte is compared; nothing hangs on a hash or on who says that a page is unchanged.
//     Pages and addresses stay the same in a fork, so its dumps have the same base. Shared
//     objects get other numbers in each restored process: they are found by where they are
//     mapped, or by the name of the memfd.
//   - A process that was forked from another one in the dump (a pre-forking server) has its
//     equal pages "in parent" likewise: parent holds, under the name of its pagemap, that of
//     the other process.
//
// parent is a directory of hard links: it costs a few directory entries, and the new
// directory is whole by itself, also when the base's is removed. The page cache holds
// the base once for all. A pagemap that shares nothing is not in parent: CRIU reads a
// process without a parent in the faster way.
//
// Pages that are equal at other addresses are not shared. CRIU has no way to say that.
//
// Compress makes what is not to be restored soon smaller still, Expand takes that back. The
// chunks of 1 MB are independent, so that all processors work on one file. The level is
// zstd's fastest: on memory of Python, Node.js and PostgreSQL the higher ones save nothing
// worth mentioning (ratio 7.8, 5.3, 4.9 at 320, 230, 250 MB/s per core; one level up 7.4,
// 5.0, 5.0 at 250, 190, 170), and all expand at about 1 GB/s per core. The encoder notices by
// itself what can't be compressed and stores it as it is, at 1 GB/s.
//
// Invariants:
//   - What is given is never changed, and never opened for writing.
//   - Images come from the memory layout of a hostile process: addresses, counts, flags and
//     sizes are checked, a field or flag that is not known is refused, nothing is allocated
//     for a number that the images claim without a file that is as large.
//   - In memory: a byte for each page of the dump (1/4096), the largest image but pages
//     (16 MiB at most), and buffers.
package pages
