package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// node is one process of a tree. It holds words, and talks with its children by pipes.
type node struct {
	words    []string
	children []child
}

type child struct {
	in  io.Writer
	out *bufio.Scanner
}

// tree makes n processes, this one included, and talks.
func tree(n int) error {
	self := &node{}
	left := (n - 1) / 2
	for _, size := range []int{left, n - 1 - left} {
		if size == 0 {
			continue
		}
		c := exec.CommandContext(context.Background(), "/proc/self/exe", "tree", strconv.Itoa(size))
		c.Env = append(os.Environ(), "GOMAXPROCS=1")
		c.Stderr = os.Stderr
		in, err := c.StdinPipe()
		if err != nil {
			return err
		}
		out, err := c.StdoutPipe()
		if err != nil {
			return err
		}
		if err := c.Start(); err != nil {
			return err
		}
		scan := bufio.NewScanner(out)
		scan.Buffer(nil, 1<<20)
		self.children = append(self.children, child{in: in, out: scan})
	}
	return converse(self)
}

func (n *node) tell(word string) error {
	n.words = append(n.words, word)
	return n.pass(word, func(string) {})
}

// pass has the children take a line, and gives their answers.
func (n *node) pass(line string, answer func(string)) error {
	for _, c := range n.children {
		if _, err := fmt.Fprintln(c.in, line); err != nil {
			return err
		}
	}
	for _, c := range n.children {
		if !c.out.Scan() {
			return fmt.Errorf("a child has ended: %w", io.ErrUnexpectedEOF)
		}
		answer(strings.Trim(c.out.Text(), "<>"))
	}
	return nil
}

// held gives the number of processes that hold the same words, for each.
func (n *node) held() (string, error) {
	counts := map[string]int{strings.Join(n.words, ","): 1}
	total := 1
	err := n.pass("?", func(s string) {
		size, words, _ := strings.Cut(s, " ")
		k, _ := strconv.Atoi(size)
		total += k
		counts[words] += k
	})
	if len(counts) != 1 {
		return "", fmt.Errorf("the processes hold different words: %v", counts)
	}
	return fmt.Sprintf("%d %s", total, strings.Join(n.words, ",")), err
}
