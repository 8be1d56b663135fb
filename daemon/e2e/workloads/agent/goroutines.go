package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// goroutines pass what they are told on to each other. A ticker has each step made.
type goroutines struct {
	in    chan string
	out   chan []string
	words []string
}

func newGoroutines(n int) *goroutines {
	first := make(chan string)
	g := &goroutines{in: first, out: make(chan []string)}
	next := first
	for range n {
		from, to := next, make(chan string)
		next = to
		go func() {
			tick := time.NewTicker(time.Millisecond)
			for word := range from {
				<-tick.C
				to <- word
			}
		}()
	}
	go func() {
		var words []string
		for word := range next {
			words = append(words, word)
			g.out <- slices.Clone(words)
		}
	}()
	return g
}

func (g *goroutines) tell(word string) error {
	g.in <- word
	g.words = <-g.out
	return nil
}

func (g *goroutines) held() (string, error) {
	return fmt.Sprintf("%d %s", len(g.words), strings.Join(g.words, ",")), nil
}
