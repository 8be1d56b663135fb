package guest

import (
	"bytes"
	"strconv"
	"strings"
)

const (
	// maxID is the highest uid and gid that a sandbox's user namespace maps.
	maxID = 1<<16 - 1
	// maxUserFile bounds /etc/passwd and /etc/group, in bytes.
	maxUserFile = 4 << 20
	maxGroups   = 1024
)

// identity is who a process runs as.
type identity struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// userFiles gives the contents of /etc/passwd and /etc/group; nil for one that can't be read.
type userFiles func() (passwd, group []byte)

func readUserFiles() (passwd, group []byte) {
	passwd, _ = readSmall("/etc/passwd", maxUserFile)
	group, _ = readSmall("/etc/group", maxUserFile)
	return passwd, group
}

// resolveUser finds the identity that spec, "user[:group]" with names or numbers, means.
// A number need not be listed; a name must be. With a group given, the process is in that
// group only; else in the user's own group and those that list the user.
func resolveUser(spec string, files userFiles) (identity, error) {
	userName, groupName, hasGroup := strings.Cut(spec, ":")
	if userName == "" {
		userName = "0"
	}
	passwd, group := files()
	id := identity{home: "/"}
	name := ""
	uid, numeric := parseID(userName)
	found := eachLine(passwd, 7, func(f []string) bool {
		n, ok := parseID(f[2])
		g, gok := parseID(f[3])
		// Names come first: a user may be called "1000".
		if !ok || !gok || f[0] != userName && (!numeric || n != uid) {
			return false
		}
		id.uid, id.gid, name = n, g, f[0]
		if strings.HasPrefix(f[5], "/") {
			id.home = f[5]
		}
		return true
	})
	if !found {
		if !numeric {
			return identity{}, failure{codeBadUser, "no user " + strconv.Quote(userName)}
		}
		id.uid = uid
		if uid == 0 {
			id.home = "/root"
		}
	}
	if hasGroup {
		gid, numeric := parseID(groupName)
		found := eachLine(group, 3, func(f []string) bool {
			n, ok := parseID(f[2])
			if ok && f[0] == groupName {
				gid = n
				return true
			}
			return false
		})
		if !found && !numeric {
			return identity{}, failure{codeBadUser, "no group " + strconv.Quote(groupName)}
		}
		id.gid = gid
		return id, nil
	}
	if name != "" {
		eachLine(group, 4, func(f []string) bool {
			n, ok := parseID(f[2])
			if ok && n != id.gid && contains(strings.Split(f[3], ","), name) {
				id.groups = append(id.groups, n)
			}
			return len(id.groups) >= maxGroups
		})
	}
	return id, nil
}

func contains(list []string, s string) bool {
	for _, item := range list {
		if item == s {
			return true
		}
	}
	return false
}

// eachLine calls match with the fields of each line that has at least n of them, until it
// returns true, and says whether it did.
func eachLine(b []byte, n int, match func([]string) bool) bool {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		fields := strings.Split(string(line), ":")
		if len(fields) >= n && match(fields) {
			return true
		}
	}
	return false
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > maxID {
		return 0, false
	}
	return uint32(n), true
}
