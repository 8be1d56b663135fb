// Program agent is a statically linked Go program that is checkpointed: goroutines that
// hold words, timers, and on demand many threads or many processes.
//
//	agent hold         goroutines that hold words, and a ticker
//	agent threads N    the same with N threads, each blocked in a system call of its own
//	agent tree N       the same with N processes, a binary tree
//
// It reads words from its input, and prints after each what it holds, between < and >.
// The word ? is only asked.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	number := func() int {
		n := 0
		if len(args) == 2 {
			n, _ = strconv.Atoi(args[1])
		}
		return n
	}
	switch {
	case len(args) == 1 && args[0] == "hold":
		return converse(newGoroutines(16))
	case number() > 0 && args[0] == "threads":
		th, err := newThreads(number())
		if err != nil {
			return err
		}
		return converse(th)
	case number() > 0 && args[0] == "tree":
		return tree(number())
	}
	return fmt.Errorf("usage: agent hold | threads N | tree N")
}

// holder holds words somewhere.
type holder interface {
	tell(word string) error
	held() (string, error)
}

func converse(h holder) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if word := in.Text(); word != "?" {
			if err := h.tell(word); err != nil {
				return err
			}
		}
		held, err := h.held()
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(os.Stdout, "<%s>\n", held); err != nil {
			return err
		}
	}
	return in.Err()
}
