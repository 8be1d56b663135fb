package overlay

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hammerMain is an agent's process that changes files below /w at random
// until its standard input ends. Each file is left alone long enough for a
// capture to copy it meanwhile, and changed often enough for that to be in
// vain now and then.
func hammerMain(seed uint64) {
	for i := range uint64(2) {
		go func() {
			r := rand.New(rand.NewPCG(seed, i))
			tick := time.NewTicker(400 * time.Microsecond)
			for range tick.C {
				_ = hammerOp(r).run() // many are bound to fail
			}
		}()
	}
	go func() {
		r := rand.New(rand.NewPCG(seed, 99))
		tick := time.NewTicker(500 * time.Microsecond)
		for range tick.C {
			hammerMapping(r, tick.C)
		}
	}()
	fmt.Print("ready\n")
	var b [1]byte
	for {
		if n, err := os.Stdin.Read(b[:]); err != nil || n == 0 {
			return
		}
	}
}

func hammerPath(r *rand.Rand) []byte {
	path := fmt.Sprintf("/w/d%d/f%d", r.IntN(12), r.IntN(12))
	for r.IntN(4) == 0 {
		path += fmt.Sprintf("/f%d", r.IntN(3))
	}
	return []byte(path)
}

func hammerOp(r *rand.Rand) op {
	kinds := []string{
		"create", "create", "create", "create", "write", "write", "append", "truncate", "mkdirall", "mkdirall", "rename", "rename",
		"rename", "rename", "link", "link", "symlink", "chmod", "chown", "setxattr", "mkfifo", "mksock", "remove", "utimes", "mkdir",
	}
	o := op{Kind: kinds[r.IntN(len(kinds))], Path: hammerPath(r), To: hammerPath(r)}
	if r.IntN(6) == 0 { // something about directories
		o.Path = []byte(filepath.Dir(string(o.Path)))
		if o.Kind == "remove" && r.IntN(8) != 0 {
			o.Kind = "chmod"
		}
	}
	o.Data = []byte(strings.Repeat(strconv.Itoa(r.IntN(10)), 1+r.IntN(400)))
	o.Off = r.Int64N(2000)
	o.Mode, o.UID, o.GID = uint32(0o700|r.IntN(0o100)), r.IntN(1000), r.IntN(1000)
	switch o.Kind {
	case "setxattr":
		o.To = []byte("user.k" + strconv.Itoa(r.IntN(3)))
	case "mkdirall":
		o.Path = []byte(filepath.Dir(string(o.Path)))
	}
	return o
}

// hammerMapping stores to a file through a mapping, several times, with
// nothing to show for it after the first.
func hammerMapping(r *rand.Rand, tick <-chan time.Time) {
	f, err := os.OpenFile(string(hammerPath(r)), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || f.Truncate(8192) != nil {
		f.Close()
		return
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	f.Close()
	if err != nil {
		return
	}
	defer unix.Munmap(m) //nolint:errcheck // the process is at its end otherwise
	// Somebody may truncate the file: the kernel then refuses to read into the
	// mapping, where a store of one's own would end the process.
	fd, err := unix.MemfdCreate("bytes", 0)
	if err != nil {
		return
	}
	bytes := os.NewFile(uintptr(fd), "bytes")
	defer bytes.Close()
	for range r.IntN(100) {
		<-tick
		b := []byte{byte(r.IntN(256))}
		if _, err := bytes.WriteAt(b, 0); err != nil {
			return
		}
		at := r.IntN(2) * 4096
		if _, err := bytes.ReadAt(m[at:at+1], 0); err != nil {
			return
		}
	}
}
