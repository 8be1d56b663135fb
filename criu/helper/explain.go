package helper

import (
	"errors"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"cairn/criu/internal/frame"
)

// rule says what a line of CRIU's log means for a person. In resource and message, $1 and
// $2 stand for what the pattern's groups match; a group called pid is the process.
type rule struct {
	pattern  string
	code     string
	resource string
	message  string
}

const advice = "; end it before, or exclude processes from the checkpoint"

// rules are tried in this order, each on all lines: what is told first is the cause, but
// what is most particular says most.
func rules() []rule {
	return []rule{
		{`(No space left on device|Disk quota exceeded)`, "no_space", "images", "there is no room for the images; free some, or raise the limit of the disk"},
		{`Timeout reached`, "timeout", "", "a process did not stand still in time: it may wait for a device or a network file system"},
		{`SEIZE (?P<pid>\d+): (?:can't wait task|task not stopped)`, "timeout", "", "it did not stand still: it may wait for a device or a network file system"},
		{`nested (\w+) namespace for (?P<pid>\d+)`, "unsupported", "$1 namespace", "it has a namespace of its own" + advice},
		{`dump a pid namespace without the process init`, "unsupported", "pid namespace", "a process has a namespace of its own" + advice},
		{`Connected TCP socket`, "unsupported", "TCP connection", "an open connection can't be dumped"},
		{`multipathtcp=0|Unsupported proto 262 for socket`, "unsupported", "MPTCP socket", "multipath TCP can't be dumped; Go programs: GODEBUG=multipathtcp=0"},
		{`Unsupported proto (\d+) for socket`, "unsupported", "socket of protocol $1", "this protocol can't be dumped" + advice},
		{`Can't dump (\d+) inet socket`, "unsupported", "internet socket", "this type of socket can't be dumped" + advice},
		{`(?:Unknown|Unsupported) socket family:? (\d+)`, "unsupported", "socket of family $1", "sockets of this family can't be dumped" + advice},
		{`half of stream unix connection\. name: (.*); peer name: (.*)`, "unsupported", "Unix socket $1", "its other end is held by no process of the sandbox" + advice},
		{`(?:External socket is used|name-less external socket|Unix socket \d+ not found)`, "unsupported", "Unix socket", "its other end is held by no process of the sandbox" + advice},
		{`Control messages in queue`, "unsupported", "Unix socket", "descriptors are under way in it; try again"},
		{`ghost file (\S+) of (\d+) size`, "unsupported", "deleted file $1", "it is still open and, with $2 bytes, too large to go into the images"},
		{`Can't dump file (\d+) of that type \[\d+\] \((.*)\)`, "unsupported", "descriptor $1 ($2)", "this kind of file can't be dumped" + advice},
		{`path \[(.*)\] is not supported`, "unsupported", "file $1", "a file there can't be dumped" + advice},
		{`fsnotify: .*(?:Can't dump that handle|can't be opened|Can't open)`, "unsupported", "file watch", "what it watches can't be found again" + advice},
		{`ctty inheritance detected.*ctty pid_real (?P<pid>\d+)`, "unsupported", "terminal", "it has /dev/tty open, which can't be dumped" + advice},
		{`ctty inheritance detected`, "unsupported", "terminal", "a process has /dev/tty open, which can't be dumped" + advice},
		{`not a session leader`, "unsupported", "", "the root of the tree is not the stem"},
		{`Found dangling tty|slave peer index|without correspond`, "unsupported", "terminal", "its other side is held by no process of the sandbox" + advice},
		{`PID (?P<pid>\d+) has uprobes vma`, "unsupported", "uprobe", "it is being traced with uprobes; end the tracing"},
		{`Unsupported mapping found (\S+)`, "unsupported", "mapping at $1", "memory of this kind can't be dumped" + advice},
		{`task (?P<pid>\d+) running in 32-bit mode`, "unsupported", "32-bit program", "such can't be dumped" + advice},
		{`task (?P<pid>\d+) with LDT`, "unsupported", "segment table (LDT)", "such programs can't be dumped" + advice},
		{`[Zz]ombies? (?:with )?thread`, "unsupported", "thread", "it is ending; try again"},
		{`ndividually stopped threads`, "unsupported", "thread", "one of its threads is stopped on its own; let it go on"},
		{`pending SIGTRAP`, "unsupported", "debugger", "it is being debugged; end that"},
		{`Unseizable non-zombie (?P<pid>\d+) found`, "unsupported", "debugger", "it is traced by another process; end that"},
		{
			`(?:Unable to|Can't) seize.*?(?P<pid>\d+).*Operation not permitted|ptrace.*SEIZE.*Operation not permitted|TracerPid|already traced`,
			"unsupported", "debugger", "it is traced by another process; end that",
		},
		{`io_uring`, "unsupported", "io_uring", "it can't be dumped" + advice},
		{`packetized mode for pipes`, "unsupported", "pipe", "pipes in packet mode can't be dumped" + advice},
		{`PIDFD_THREAD`, "unsupported", "pidfd", "a descriptor of a single thread can't be dumped" + advice},
		{
			lostMapping.String(), "unsupported", "file mapped into memory",
			"it is on a root file system that was switched away by a checkpoint without processes; start the process again",
		},
		{`Unable to look up the \d+ mount|mnt_id \d+ not found`, "unsupported", "open file", "it is on a root file system that was switched away by a checkpoint without processes; start the process again"},
		{`File (\S+) has bad (?:size|build-ID)`, "images", "file $1", "it is not the file that the processes had open or ran"},
		{`Can't open file (\S+) on restore: No such file`, "images", "file $1", "the processes had it open, and it is not there"},
		{`Can't open (?:file )?(\S+).*: (.*)`, "failed", "file $1", "it can't be opened: $2"},
		{`(?:Pid (?P<pid>\d+) do not match|Can't fork for (?P<pid2>\d+): File exists)`, "failed", "pid", "another process has its pid"},
		{`Can't fork for \d+: (Cannot allocate memory|Resource temporarily unavailable)`, "failed", "limits", "the sandbox may not have so many processes, or so much memory"},
		{`Cannot allocate memory`, "failed", "memory", "there is not enough memory, or the sandbox may not have it"},
		{
			`CPU .*(?:do not match|unsupported bits|size mismatch)|FPU (?:feature required|xsave area present)|xfeatures`,
			"unsupported", "CPU", "the processes were dumped on a CPU that has what this one lacks",
		},
		{`(?:magic|Corrupt|protobuf|Unexpected EOF|Unable to read).*`, "images", "images", "they are damaged"},
		{`No process|No such process`, "gone", "", "a process ended meanwhile; try again"},
	}
}

var (
	errorLine = regexp.MustCompile(`Error \([^)]*\):\s*(.*)`)
	inProcess = regexp.MustCompile(`^(?:\([\d.]+\)\s+)?(?:pie:\s+)?(\d+): `)
	atProcess = regexp.MustCompile(`Dumping (?:task|opened files|core|pages) \((?:type: \d+ )?pid: (\d+)`)
)

// harmless are error lines that CRIU writes when all is well.
func harmless(line string) bool {
	return strings.Contains(line, "Can't setup RLIMIT_NOFILE for self") || strings.Contains(line, "failed to suspend seccomp")
}

// explain makes a failure for a person of CRIU's log.
func explain(log string, err error, t *tree, op string) *frame.Failure {
	var lines []string
	pid := 0
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		if len(lines) == 0 {
			if m := atProcess.FindStringSubmatch(line); m != nil {
				pid, _ = strconv.Atoi(m[1])
			}
		}
		m := errorLine.FindStringSubmatch(line)
		if m == nil || harmless(line) {
			continue
		}
		if p := inProcess.FindStringSubmatch(line); p != nil && len(lines) == 0 {
			pid, _ = strconv.Atoi(p[1])
		}
		lines = append(lines, m[1])
	}
	const most = 20
	f := &frame.Failure{Code: "failed", PID: pid, Log: lines[:min(len(lines), most)]}
	apply(f, lines)
	switch {
	case f.Message != "":
	case len(lines) > 0:
		f.Message = "CRIU could not " + op + " it: " + lines[0]
	case err != nil:
		f.Code = "interrupted"
		f.Message = "CRIU ended before it had done its work: " + firstLine(err.Error())
		// It may not have begun: then its end says more than that nobody heard the request.
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			f.Message = "CRIU ended before it had done its work: " + entered(exit.ExitCode())
		}
		said := strings.Split(strings.TrimSpace(log), "\n")
		f.Log = said[max(0, len(said)-most):]
	}
	f.Comm = t.comm(f.PID)
	return f
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// apply fills in what the first fitting rule says.
func apply(f *frame.Failure, lines []string) {
	for _, r := range rules() {
		re := regexp.MustCompile(r.pattern)
		for _, line := range lines {
			m := re.FindStringSubmatchIndex(line)
			if m == nil {
				continue
			}
			f.Code = r.code
			f.Resource = strings.TrimSpace(string(re.ExpandString(nil, strings.ReplaceAll(r.resource, "$1", "${1}"), line, m)))
			f.Message = string(re.ExpandString(nil, strings.ReplaceAll(r.message, "$2", "${2}"), line, m))
			for i, name := range re.SubexpNames() {
				if strings.HasPrefix(name, "pid") && m[2*i] >= 0 {
					f.PID, _ = strconv.Atoi(line[m[2*i]:m[2*i+1]])
				}
			}
			return
		}
	}
}
