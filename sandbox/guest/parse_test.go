package guest

import "testing"

func TestParseStat(t *testing.T) {
	const rest = " S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2"
	for _, name := range []string{"sh", "a b", ") R 9 (", "))"} {
		st, err := parseStat([]byte("12 (" + name + ")" + rest))
		if err != nil || st.parent != 7 || st.startTicks != 98765 {
			t.Errorf("%q: %+v, %v", name, st, err)
		}
	}
	for _, bad := range []string{"", "12 (sh", "12 (sh) S 7", "12 (sh) S x" + rest} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzResolveUser(f *testing.F) {
	f.Add("agent:wheel", []byte("agent:x:1000:1000::/home/agent:\n"), []byte("wheel:x:27:agent\n"))
	f.Add("4294967295", []byte("::::::"), []byte(":::"))
	f.Fuzz(func(t *testing.T, spec string, passwd, group []byte) {
		id, err := resolveUser(spec, func() ([]byte, []byte) { return passwd, group })
		if err != nil {
			return
		}
		if id.uid > maxID || id.gid > maxID || len(id.groups) > maxGroups || id.home == "" || id.home[0] != '/' {
			t.Fatalf("%+v", id)
		}
	})
}
