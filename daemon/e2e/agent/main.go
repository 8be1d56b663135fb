// Command agent changes and lists trees for the end-to-end tests, and plays the
// processes that make checkpoints hard. It runs inside sandboxes and on the host.
//
//	agent run    reads a Request as JSON on stdin, answers with an Answer on stdout
//	agent play ROLE PATH   prints "ready", does one step for each line on stdin
//
// Paths in requests and answers are bytes: names need not be UTF-8.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Request asks for operations on a tree, and for its listing afterwards.
type Request struct {
	Chroot string // "" for none
	Lower  string // file that remembers hard links below the upper; see lower.go; "" for none
	Freeze bool   // first: everything there is now is below the upper
	Ops    []Op
	List   []byte // directory to list after the operations; empty for none
}

// Answer has an entry in Errors for each operation, "" for success, else the errno's name.
type Answer struct {
	Errors []string
	Files  []File
}

func main() {
	unix.Umask(0o022)
	err := errors.New("usage: agent run, or agent play ROLE PATH")
	switch {
	case len(os.Args) == 2 && os.Args[1] == "run":
		err = run()
	case len(os.Args) > 2 && os.Args[1] == "play":
		err = play(os.Stdin, os.Stdout, os.Args[2], os.Args[3:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run() error {
	var r Request
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return err
	}
	low := &lower{}
	if r.Lower != "" {
		f, err := os.OpenFile(r.Lower, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		low.file = f
		if err := low.read(); err != nil {
			return err
		}
	}
	if r.Chroot != "" {
		if err := unix.Chroot(r.Chroot); err != nil {
			return err
		}
		if err := unix.Chdir("/"); err != nil {
			return err
		}
	}
	if r.Freeze {
		if err := low.freeze(); err != nil {
			return err
		}
	}
	var a Answer
	for _, o := range r.Ops {
		a.Errors = append(a.Errors, errName(o.run(low)))
	}
	if len(r.List) > 0 {
		var err error
		if a.Files, err = list(string(r.List)); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}
