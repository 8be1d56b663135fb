package workloads

import (
	"fmt"
	"testing"
)

// TestPythonREPL has an interpreter at a terminal hold objects that only memory has: a
// generator in the middle, a closure, an open pipe, a cycle.
func TestPythonREPL(t *testing.T) {
	workload{
		start: func(b *box) []string {
			id := b.terminal("python3", "-q", "-i")
			for _, line := range []string{
				"import os, threading",
				"r, w = os.pipe(); _ = os.write(w, b'kept in a pipe')",
				"words = []; g = (x*x for x in range(10**9)); lock = threading.Lock(); _ = lock.acquire()",
				"d = {}; d['self'] = d; n = lambda: (len(words), d['self'] is d, lock.locked(), os.getpid(), os.fstat(r).st_ino > 0)",
			} {
				b.types(id, line+"\n")
			}
			b.asks(id, "print('rea'+'dy', next(g))", `(ready 0)`)
			return []string{id}
		},
		state: func(b *box, ids []string) string {
			return b.asks(ids[0], "print('<'+'<%s %r>'%(words, n()))", `<<(.*)>`)
		},
		change: func(b *box, ids []string, word string) {
			b.asks(ids[0], fmt.Sprintf("words.append(('%s', next(g))); print('do'+'ne')", word), `(done)`)
		},
	}.cycle(t)
}

// TestPythonThreadsAndSubprocesses has threads that wait on conditions, and children
// that are talked to through pipes.
func TestPythonThreadsAndSubprocesses(t *testing.T) {
	talker("python3", "/w/workers.py").cycle(t)
}

// talker is a workload of a program that takes words by its input and prints what it
// holds between < and >; "?" is no word.
func talker(command ...string) workload {
	return workload{
		start: func(b *box) []string {
			id := b.daemon(command...)
			b.asks(id, "?", `<(.*)>`)
			return []string{id}
		},
		state:  func(b *box, ids []string) string { return b.asks(ids[0], "?", `<(.*)>`) },
		change: func(b *box, ids []string, word string) { b.asks(ids[0], word, `<(.*)>`) },
	}
}
