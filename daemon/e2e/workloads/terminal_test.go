package workloads

import (
	"fmt"
	"strings"
	"testing"
)

// TestBash has a shell at a terminal, with variables, an array, a function, another
// directory, a running and a stopped job, and a trap.
func TestBash(t *testing.T) {
	workload{
		start: func(b *box) []string {
			id := b.terminal("bash", "--norc", "--noprofile", "-i")
			for _, line := range []string{
				"words=(); f() { echo \"<\"\"<${words[*]} in $PWD, $(jobs -rp | wc -l) running, $(jobs -sp | wc -l) stopped, umask $(umask)>\"; }",
				"cd /usr/share; umask 027; trap 'words+=(trapped)' USR1",
				"sleep 100000 & sleep 100001 & kill -STOP $!",
				"(for ((i = 0; ; i++)); do echo $i >/w/count; sleep 0.1; done) &",
			} {
				b.types(id, line+"\n")
			}
			b.eventually("the jobs are there", func() bool { return strings.Contains(b.asks(id, "f", `<<(.*)>`), "2 running, 1 stopped") })
			return []string{id}
		},
		state: func(b *box, ids []string) string { return b.asks(ids[0], "f", `<<(.*)>`) },
		change: func(b *box, ids []string, word string) {
			b.asks(ids[0], fmt.Sprintf("words+=(%s); kill -USR1 $$; echo do\"\"ne", word), `(done)`)
		},
		revived: func(b *box, ids []string) {
			// A job comes to the foreground, is stopped by the terminal, and goes on.
			b.types(ids[0], "fg %1\n")
			b.eventually("the job is in the foreground", func() bool {
				return b.sh(fmt.Sprintf("ps -o tpgid= -p %d", b.process(ids[0]).Pid)) == b.sh("pgrep -xo sleep")
			})
			b.types(ids[0], "\x1a")
			b.asks(ids[0], "bg %1; echo do\"\"ne", `(done)`)
			was := b.sh("cat /w/count")
			b.eventually("the other job goes on", func() bool { return b.sh("cat /w/count") != was })
		},
	}.cycle(t)
}

// TestTmux has two windows, with a shell and an interpreter, and a client at a terminal.
func TestTmux(t *testing.T) {
	capture := func(b *box, window int) string {
		return b.sh(fmt.Sprintf("tmux capture-pane -p -J -t s:%d", window))
	}
	workload{
		start: func(b *box) []string {
			id := b.terminal("tmux", "-f", "/dev/null", "new-session", "-s", "s", "bash --norc")
			b.eventually("the session is there", func() bool { return b.tries("", "tmux", "has-session", "-t", "s") })
			b.sh("tmux new-window -t s:1 python3 -q")
			b.sh("tmux send-keys -t s:0 'cd /usr; words=' Enter; tmux send-keys -t s:1 'words = []' Enter")
			return []string{id}
		},
		state: func(b *box, _ []string) string {
			return "windows " + b.sh("tmux list-windows -t s -F '#I #{pane_current_command} #{pane_current_path}'") +
				", clients " + b.sh("tmux list-clients -t s | wc -l") + "\n" + capture(b, 0) + "\n" + capture(b, 1)
		},
		change: func(b *box, _ []string, word string) {
			b.sh(fmt.Sprintf(`tmux send-keys -t s:0 'words+=" %[1]s"; echo "<""<$words in $PWD>"' Enter; tmux send-keys -t s:1 'words.append("%[1]s"); print("<"+"<%%s>"%%words)' Enter`, word))
			b.eventually("both windows show it", func() bool {
				shell, python := capture(b, 0), capture(b, 1)
				return strings.Contains(shell, word+" in /usr>") && strings.Contains(python, "'"+word+"']>") &&
					strings.HasSuffix(python, ">>>") && strings.HasSuffix(shell, "#")
			})
		},
	}.cycle(t)
}

// TestTerminalOfChildren shows that the leader of a session, and what it starts from then
// on, has its terminal as the controlling one again, and that its children from before do
// not: they go on reading and writing it, and get its signals, but cannot open /dev/tty.
func TestTerminalOfChildren(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	id := b.terminal("bash", "--norc", "--noprofile", "-i")
	b.sh("mkfifo /w/child /w/answer")
	b.types(id, "while read -r; do (: </dev/tty) 2>/dev/null && echo has >/w/answer || echo hasnot >/w/answer; done <>/w/child &\n")
	child := func() string { return b.sh("echo >/w/child; cat /w/answer") }
	self := func() string { return b.asks(id, "(: </dev/tty) && echo '<''<has>' || echo '<''<hasnot>'", `<<(.*)>`) }
	if got := self() + " " + child(); got != "has has" {
		t.Fatalf("before: shell and child: %s", got)
	}
	cp := b.checkpoint()
	b.restore(cp.Id)
	if got := self() + " " + child(); got != "has hasnot" {
		t.Fatalf("after: shell and child: %s", got)
	}
}

// TestShellInShell shows what follows for a shell that another shell runs: it goes on, but
// cannot give the terminal to what it runs, so that Ctrl-C does not reach that.
func TestShellInShell(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	id := b.terminal("bash", "--norc", "--noprofile", "-i")
	b.types(id, "bash --norc --noprofile -i\n")
	b.asks(id, "word=kept; echo '<'\"<$SHLVL>\"", `<<(2)>`)
	// Is a program that it runs in the foreground?
	foreground := func() bool {
		b.types(id, "sleep 1000\n")
		var pid string
		b.eventually("it runs", func() bool { pid = b.sh("pgrep -x sleep || true"); return pid != "" })
		is := b.sh(fmt.Sprintf("ps -o tpgid= -p %d", b.process(id).Pid)) == pid
		b.sh("kill " + pid)
		if word := b.asks(id, "echo '<'\"<$word>\"", `<<(.*)>`); word != "kept" {
			t.Errorf("it holds %q", word)
		}
		return is
	}
	if !foreground() {
		t.Error("before: it does not have the terminal")
	}
	b.restore(b.checkpoint().Id)
	if foreground() {
		t.Error("after: it has the terminal, which is good, but not what is written down")
	}
}
