package criu

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// openCgroups opens, for writing, the process lists of all control groups that a process
// is in. What writes "0" to each joins them: restored processes start in the groups of the
// CRIU that restores them.
func openCgroups(pid int) ([]*os.File, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, &Error{Code: CodeGone, PID: 1, Message: "the sandbox has ended", Err: err}
	}
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir, ok := mounts[parts[1]]
		if !ok {
			continue // a hierarchy that is mounted nowhere limits nobody
		}
		f, err := os.OpenFile(filepath.Join(dir, parts[2], "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, fmt.Errorf("open the control group of the sandbox: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

// cgroupMounts gives the mount points of the hierarchies by their controllers, as
// /proc/PID/cgroup writes them; version 2 is "".
func cgroupMounts() (map[string]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	defer f.Close()
	mounts := map[string]string{}
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		fields, tail := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 5 || len(tail) < 3 || fields[3] != "/" {
			continue
		}
		switch tail[0] {
		case "cgroup2":
			mounts[""] = fields[4]
		case "cgroup":
			var controllers []string
			for _, o := range strings.Split(tail[2], ",") {
				switch o {
				case "rw", "ro", "xattr", "clone_children", "noprefix", "all", "none":
				default:
					if !strings.HasPrefix(o, "release_agent=") && !strings.HasPrefix(o, "cpuset_") {
						controllers = append(controllers, o)
					}
				}
			}
			mounts[strings.Join(controllers, ",")] = fields[4]
		}
	}
	return mounts, errors.Join(sc.Err())
}
