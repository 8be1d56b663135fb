// Package failpoint lets tests end the daemon, or make a step fail, at named
// places. Without configuration a point costs one nil check.
package failpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Action is what happens at a point.
type Action string

// The actions: the process is killed as by kill -9, or the step fails with ErrInjected.
const (
	Kill  Action = "kill"
	Error Action = "error"
)

// ErrInjected is what a point with action Error returns.
var ErrInjected = errors.New("injected by a failpoint")

// Points is which points are armed. A nil *Points has none.
type Points struct{ armed map[string]Action }

// Parse reads "name=kill,other=error" and checks the names against known.
func Parse(s string, known []string) (*Points, error) {
	if s == "" {
		return nil, nil
	}
	p := &Points{armed: map[string]Action{}}
	for _, part := range strings.Split(s, ",") {
		name, action, _ := strings.Cut(part, "=")
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("failpoint %q is not one of %s", name, strings.Join(known, ", "))
		}
		if a := Action(action); a != Kill && a != Error {
			return nil, fmt.Errorf("failpoint action %q is neither kill nor error", action)
		}
		p.armed[name] = Action(action)
	}
	return p, nil
}

// Reach is called at the point of that name.
func (p *Points) Reach(name string) error {
	if p == nil {
		return nil
	}
	switch p.armed[name] {
	case Kill:
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {}
	case Error:
		return fmt.Errorf("%s: %w", name, ErrInjected)
	}
	return nil
}
