package helper

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"cairn/criu/internal/frame"

	"github.com/checkpoint-restore/go-criu/v7"
	"golang.org/x/sys/unix"
)

// probeRole is the argument of the process that probes, in namespaces like a sandbox's
// where nobody else is: nothing a sandbox does can change what is found.
const probeRole = "probe"

// probe finds out what CRIU and the kernel can do, and lets CRIU keep what it learns of
// the kernel in the cache.
func probe(s frame.Setup) frame.Event {
	e := entry{Op: frame.OpProbe, Bundle: s.Bundle}
	text, err := json.Marshal(e)
	if err != nil {
		return failed(err)
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: s.ProbeID, Size: 1}}
	cmd := exec.Command("/proc/self/exe", probeRole)
	cmd.Env = append(os.Environ(), enterVar+"="+string(text))
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{NoSetGroups: true},
	}
	if err := cmd.Run(); err != nil {
		return failed(fmt.Errorf("probe in namespaces of its own: %w: %s", err, strings.TrimSpace(log.String())))
	}
	p := &frame.Probe{}
	if err := json.Unmarshal(out.Bytes(), p); err != nil {
		return failed(fmt.Errorf("read what the probe found: %w", err))
	}
	return frame.Event{Probe: p}
}

// probeInside is the probing process: PID 1 and root of its namespaces.
func probeInside() int {
	p, err := look()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func look() (*frame.Probe, error) {
	var e entry
	if err := json.Unmarshal([]byte(os.Getenv(enterVar)), &e); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
	)
	if err != nil {
		return nil, fmt.Errorf("mount /proc: %w", err)
	}
	// CRIU connects to itself to see what TCP can do.
	if err := loopbackUp(); err != nil {
		return nil, fmt.Errorf("start the loopback interface: %w", err)
	}
	c := criu.MakeCriu()
	c.SetCriuPath(self)
	p := &frame.Probe{}
	if p.Version, err = c.GetCriuVersion(); err != nil {
		return nil, fmt.Errorf("ask CRIU for its version: %w", err)
	}
	if p.MemTrack, err = tracksPages(); err != nil {
		return nil, fmt.Errorf("see whether changed pages are tracked: %w", err)
	}
	check := exec.Command(e.Bundle+"/ld.so", "--library-path", e.Bundle, e.Bundle+"/criu", "check", "--unprivileged")
	check.Env = []string{"PATH=/nonexistent", "XDG_RUNTIME_DIR=/proc/self/fd/" + strconv.Itoa(frame.FDCache)}
	text, err := check.CombinedOutput()
	p.CheckPassed = err == nil
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "Error") || strings.Contains(line, "Warn") {
			p.Complaints = append(p.Complaints, strings.TrimSpace(line))
		}
	}
	_, err = os.Stat("/proc/self/fd/" + strconv.Itoa(frame.FDCache) + "/criu.kdat")
	p.CacheSaved = err == nil
	return p, nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// tracksPages finds out whether the kernel notes which pages were written, by writing one.
// go-criu's FeatureCheck can't be asked: version 7 returns the question for the answer.
func tracksPages() (bool, error) {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Munmap(page) }()
	page[0] = 1
	dirty := func() (bool, error) {
		const softDirty, entryLen = 1 << 55, 8
		f, err := os.Open("/proc/self/pagemap")
		if err != nil {
			return false, err
		}
		defer f.Close()
		var b [entryLen]byte
		at := int64(uintptr(unsafe.Pointer(&page[0]))) / int64(os.Getpagesize()) * entryLen
		_, err = f.ReadAt(b[:], at)
		return binary.NativeEndian.Uint64(b[:])&softDirty != 0, err
	}
	const forget = "4"
	if err := os.WriteFile("/proc/self/clear_refs", []byte(forget), 0); err != nil {
		return false, nil // not even the file is there
	}
	before, err := dirty()
	if err != nil || before {
		return false, err
	}
	page[0] = 2
	return dirty()
}

// execute becomes CRIU where this process is.
func (e entry) execute(socket string) error {
	args := []string{e.Bundle + "/ld.so", "--library-path", e.Bundle, e.Bundle + "/criu", "swrk", socket}
	return unix.Exec(args[0], args, []string{"PATH=/nonexistent", "XDG_RUNTIME_DIR=/proc/self/fd/" + strconv.Itoa(frame.FDCache)})
}
