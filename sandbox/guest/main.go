package guest

import (
	"os"
	"strconv"
	"syscall"
)

// runDir is the per-sandbox directory of the host, as mounted inside.
const runDir = "/run/cairn"

// Main runs the role that args (the command line, with the program's name) asks for and
// returns its exit code.
func Main(args []string) int {
	defaultInherited()
	switch {
	case len(args) == 1:
		if os.Getpid() != 1 {
			logf("cairn-init runs as PID 1 of a sandbox")
			return 2
		}
		return runInit(runDir)
	case len(args) == 2 && args[1] == stemRole:
		return runStem(runDir)
	}
	logf("usage: cairn-init [" + stemRole + "]")
	return 2
}

// logf writes one line to standard error, which PID 1 shares with the container and which
// is /run/cairn/stem.log for the stem.
func logf(parts ...string) {
	line := "cairn-init: "
	for _, p := range parts {
		line += p
	}
	// There is nobody to tell when logging fails.
	_, _ = syscall.Write(2, []byte(line+"\n"))
}

func itoa(n int) string { return strconv.Itoa(n) }
