package e2e

import (
	"slices"

	"pgregory.net/rapid"
)

// drawPath draws a path below the worked directory; names repeat often.
func drawPath(r *rapid.T, label string) []byte {
	elem := rapid.SampledFrom([]string{"a", "a", "a", "b", "b", "c", "c", "x y", "n\nl", "\xff\xfe", "ü=\\", ".wh.z"})
	p := worked
	for range rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3, 4}).Draw(r, label+" depth") {
		p += "/" + elem.Draw(r, label)
	}
	return []byte(p)
}

func drawOps(r *rapid.T) (ops []agentOp) {
	for range rapid.IntRange(1, 15).Draw(r, "operations") {
		ops = append(ops, drawOp(r)...)
	}
	return ops
}

func drawOp(r *rapid.T) []agentOp {
	o := agentOp{
		Kind: rapid.SampledFrom([]string{
			"create", "create", "create", "create", "write", "append", "truncate", "mkdir", "mkdir", "mkdir", "rename", "rename", "rename", "link", "link",
			"symlink", "chmod", "chown", "setxattr", "removexattr", "mkfifo", "remove", "remove", "utimes", "retype", "deep",
		}).Draw(r, "op"),
		Path: drawPath(r, "path"),
	}
	xattr := func() []byte {
		return []byte("user." + rapid.SampledFrom([]string{"a", "b", "ü"}).Draw(r, "attribute"))
	}
	switch o.Kind {
	case "create", "append":
		o.Data = rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(r, "data")
	case "setxattr":
		o.Data, o.To = rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(r, "data"), xattr()
	case "removexattr":
		o.To = xattr()
	case "write": // far behind the end makes a hole
		o.Data = rapid.SliceOfN(rapid.Byte(), 1, 16).Draw(r, "data")
		o.Off = rapid.Int64Range(0, 3<<20).Draw(r, "offset")
	case "truncate":
		o.Off = rapid.Int64Range(0, 1<<20).Draw(r, "size")
	case "rename", "link", "symlink":
		o.To = drawPath(r, "to")
	case "chmod":
		o.Mode = uint32(rapid.IntRange(0, 0o7777).Draw(r, "mode"))
	case "chown":
		o.UID, o.GID = rapid.IntRange(0, 65535).Draw(r, "uid"), rapid.IntRange(0, 65535).Draw(r, "gid")
	case "utimes":
		o.Off = rapid.Int64Range(1, 2e9).Draw(r, "time")
	case "retype":
		kinds := rapid.SampledFrom([]string{"create", "mkdir", "mkfifo", "symlink"})
		return []agentOp{{Kind: "remove", Path: o.Path}, {Kind: kinds.Draw(r, "type"), Path: o.Path, To: drawPath(r, "to")}}
	case "deep":
		end := slices.Concat(o.Path, []byte("/deep/deep/deep/end"))
		return []agentOp{{Kind: "deep", Path: o.Path}, {Kind: "create", Path: end, Data: []byte("end")}}
	}
	return []agentOp{o}
}
