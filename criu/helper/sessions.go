package helper

import (
	"errors"
	"os"

	"cairn/criu/internal/frame"

	"google.golang.org/protobuf/encoding/protowire"
)

// member is a process of the tree, as the images have it.
type member struct{ pid, parent, session int }

// members lists the tree, the root first.
func members(images *os.File) ([]member, error) {
	b, err := readImage(images, pstreeFile)
	if err != nil {
		return nil, err
	}
	var list []member
	err = entries(b, func(e []byte) error {
		const pid, parent, session = 1, 2, 4
		var m member
		err := fields(e, func(n protowire.Number, _, _ []byte, v uint64) error {
			switch n {
			case pid:
				m.pid = int(v)
			case parent:
				m.parent = int(v)
			case session:
				m.session = int(v)
			default:
			}
			return nil
		})
		list = append(list, m)
		return err
	})
	if err == nil && (len(list) == 0 || list[0].parent != 0) {
		err = errMalformed
	}
	return list, err
}

// orphans says whether CRIU will have to fork a child of the root in another process, as
// it is in a session that neither the root nor itself leads.
func orphans(tree []member) bool {
	root := tree[0]
	for _, m := range tree[1:] {
		if m.parent == root.pid && m.session != root.session && m.session != m.pid {
			return true
		}
	}
	return false
}

// checkSessions looks for a process of which CRIU would not find out, only when it is
// restored, how it came into its session. It knows orphans only as children of the root.
func checkSessions(images *os.File, t *tree) error {
	tree, err := members(images)
	if err != nil {
		return err
	}
	root := tree[0]
	known, born := map[int]member{}, map[int]int{}
	for _, m := range tree {
		known[m.pid] = m
	}
	for _, m := range tree[1:] {
		parent, ok := known[m.parent]
		if !ok {
			return errors.Join(errMalformed, errors.New("a process without a parent"))
		}
		// Its own, its parent's, or an orphan's.
		if m.session == m.pid || m.session == parent.session || parent.pid == root.pid {
			continue
		}
		for parent.pid != m.session {
			if was, ok := born[parent.pid]; ok && was != m.session || parent.pid == root.pid {
				return &refusal{frame.Failure{
					Code: "unsupported", PID: m.pid, Comm: t.comm(m.pid), Resource: "session",
					Message: "the process that it had its session from has ended, and another one than the stem has taken it on" + advice,
				}}
			}
			born[parent.pid] = m.session
			parent = known[parent.parent]
		}
	}
	return nil
}
