package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"cairn/api/client"
	"cairn/api/types"
	"cairn/scripts/bench/baseline"
)

const (
	imageName = "demo"
	work      = "/app"
	project   = work + "/networkx"
	database  = work + "/plan.db"
	broken    = "networkx/algorithms/shortest_paths/weighted.py" // where the bug is
	tests     = "python3 -m pytest -q --tb=no -p no:cacheprovider networkx/algorithms/shortest_paths"
)

func (d *demo) importImage(ctx context.Context) error {
	f, err := os.Open(d.o.ImageTar)
	if err != nil {
		return err
	}
	defer f.Close()
	name := imageName
	_, err = client.Get[types.Image](d.cairn.AddImageWithBody(ctx, &types.AddImageParams{Name: &name}, "application/x-tar", f))
	return err
}

// output runs a shell script in a sandbox and returns what it prints, and its exit code.
func (d *demo) output(ctx context.Context, sandbox, dir, script string) (string, int, error) {
	r, err := client.Get[types.ExecResult](d.cairn.Exec(ctx, sandbox, nil, types.Exec{Command: []string{"sh", "-ec", script}, Cwd: &dir}))
	return r.Stdout + r.Stderr, r.ExitCode, err
}

// must is output of a script that has to succeed.
func (d *demo) must(ctx context.Context, sandbox, dir, script string) (string, error) {
	out, code, err := d.output(ctx, sandbox, dir, script)
	if err == nil && code != 0 {
		err = fmt.Errorf("in the sandbox, %q: exit code %d: %s", script, code, out)
	}
	return strings.TrimSpace(out), err
}

func (d *demo) create(ctx context.Context) error {
	d.heading("An agent gets a sandbox.")
	env := types.Env{
		"PYTHONPATH": "/srv/tools", "PYTHONPYCACHEPREFIX": "/var/cache/python", "LANG": "C.UTF-8",
		"GIT_AUTHOR_NAME": "agent", "GIT_AUTHOR_EMAIL": "agent@example.org",
	}
	name := "agent"
	took, err := timed(func() error {
		s, err := client.Get[types.Sandbox](d.cairn.CreateSandbox(ctx, nil, types.CreateSandbox{Image: imageName, Name: &name, Env: &env}))
		d.sandbox = s.Id
		return err
	})
	if err != nil {
		return err
	}
	theirs, err := timed(func() (err error) { d.container, err = d.base.Create(ctx, d.image); return err })
	if err != nil {
		return err
	}
	d.op("create a sandbox", took, theirs, "prepare a snapshot, create, start")
	mine, err := repeated(func() error { _, err := d.must(ctx, d.sandbox, "/", "true"); return err })
	if err != nil {
		return err
	}
	theirs, err = repeated(func() error { return d.container.Run(ctx, "sh", "-ec", "true") })
	if err != nil {
		return err
	}
	d.op("run a command (sh -c true)", mine, theirs, "task.Exec; median of 9")
	return nil
}

// repeated is the median time of a few calls.
func repeated(f func() error) (time.Duration, error) {
	const n = 9
	var all []time.Duration
	for range n {
		took, err := timed(f)
		if err != nil {
			return 0, err
		}
		all = append(all, took)
	}
	slices.Sort(all)
	return all[n/2], nil
}

// clone puts the repository into the sandbox, clones it there and runs its tests.
func (d *demo) clone(ctx context.Context) error {
	d.heading("It clones a project, NetworkX, runs its tests, and makes a plan in a database.")
	f, err := os.Open(d.o.RepoTar)
	if err != nil {
		return err
	}
	defer f.Close()
	yes := true
	_, err = client.Get[types.FileInfo](d.cairn.WriteFileWithBody(ctx, d.sandbox, &types.WriteFileParams{Path: "/srv", Parents: &yes}, "application/x-tar", f))
	if err != nil {
		return fmt.Errorf("upload %s: %w", d.o.RepoTar, err)
	}
	script := "mkdir -p " + work + " && git clone -q /srv/networkx.git " + project + " && cd " + project + " && git ls-files | wc -l"
	took, err := timed(func() error {
		out, err := d.must(ctx, d.sandbox, "/", script)
		d.say("  git clone: %s files", out)
		return err
	})
	if err != nil {
		return err
	}
	log, err := d.must(ctx, d.sandbox, project, "git log --oneline")
	if err != nil {
		return err
	}
	d.say("%s\n  (%s)", indent(log), short(took))
	passed, line, took, err := d.test(ctx, d.sandbox)
	if err != nil {
		return err
	}
	d.say("  tests: %s (%s)", line, short(took))
	d.prove(!passed && strings.Contains(line, "passed"), "the tests run, and show the bug that the last commit brought", "")
	_, err = d.must(ctx, d.sandbox, work, `sqlite3 plan.db "create table plan (step integer primary key, what text);
		insert into plan (what) values ('find the bug'), ('fix it'), ('run the tests')"`)
	return err
}

var verdict = regexp.MustCompile(`(?m)^.*\b\d+ (passed|failed|error).*$`)

// test runs the project's tests; line is pytest's last one.
func (d *demo) test(ctx context.Context, sandbox string) (passed bool, line string, took time.Duration, err error) {
	var out string
	var code int
	took, err = timed(func() error { out, code, err = d.output(ctx, sandbox, project, tests); return err })
	if all := verdict.FindAllString(out, -1); len(all) > 0 {
		line = strings.Trim(all[len(all)-1], "= ")
	}
	if err == nil && line == "" {
		err = fmt.Errorf("the tests did not run: exit code %d: %s", code, out)
	}
	return code == 0, line, took, err
}

func (d *demo) checkpoint(ctx context.Context) (err error) {
	d.heading("It takes a checkpoint.")
	file := filepath.Join(d.root, "work.tar")
	if d.before, err = d.save(ctx, d.sandbox, work, file); err != nil {
		return err
	}
	name := "good"
	var c types.Checkpoint
	took, err := timed(func() error {
		c, err = client.Get[types.Checkpoint](d.cairn.CreateCheckpoint(ctx, d.sandbox, nil, types.CreateCheckpoint{Name: &name}))
		return err
	})
	if err != nil {
		return err
	}
	d.good = c.Id
	dir := d.container.Root() + work
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := baseline.Untar(ctx, file, dir); err != nil {
		return err
	}
	theirs, err := timed(func() error {
		if err := d.container.End(ctx); err != nil {
			return err
		}
		if d.committed, err = d.container.Commit(ctx); err != nil {
			return err
		}
		d.container, err = d.base.Create(ctx, d.committed)
		return err
	})
	if err != nil {
		return err
	}
	d.op("checkpoint", took, theirs, "end, commit the snapshot, new container")
	d.say("  checkpoint %q keeps %d paths; the sandbox stood still for %.2f ms", name, len(d.before), c.Timings.FreezeMs)
	return nil
}

func (d *demo) ruin(ctx context.Context) error {
	d.heading("Then it goes wrong: it deletes .git, overwrites files, drops the table.")
	script := `rm -rf .git
		find networkx/algorithms networkx/generators -name '*.py' | sort | sed -n 1,150p | while read -r f; do echo 'I fixed it' >"$f"; done
		rm -rf networkx/classes; mv networkx/drawing networkx/pictures; chmod -R 0777 networkx/utils
		sqlite3 ../plan.db 'drop table plan'`
	if _, err := d.must(ctx, d.sandbox, project, script); err != nil {
		return err
	}
	diff, err := client.Get[types.Diff](d.cairn.DiffSandbox(ctx, d.sandbox, &types.DiffSandboxParams{From: &d.good}))
	if err != nil {
		return err
	}
	kinds := map[types.ChangeKind]int{}
	for _, c := range diff.Items {
		kinds[c.Kind]++
	}
	d.say("  diff to the checkpoint: %d deleted, %d modified, %d added, %d with another mode",
		kinds[types.Deleted], kinds[types.Modified], kinds[types.Added], kinds[types.MetadataChanged])
	now, err := d.read(ctx, d.sandbox, work, nil)
	if err != nil {
		return err
	}
	n := d.before.differing(now)
	d.prove(n > 0, "the tree is ruined", fmt.Sprintf(": %d of %d paths are not as they were", n, len(d.before)))
	return nil
}

func (d *demo) restore(ctx context.Context) error {
	d.heading("It goes back.")
	var r types.RestoredSandbox
	took, err := timed(func() (err error) {
		r, err = client.Get[types.RestoredSandbox](d.cairn.RestoreSandbox(ctx, d.sandbox, nil, types.Restore{Checkpoint: d.good}))
		return err
	})
	if err != nil {
		return err
	}
	theirs, err := timed(func() (err error) {
		if err := d.container.Delete(ctx); err != nil {
			return err
		}
		d.container, err = d.base.Create(ctx, d.committed)
		return err
	})
	if err != nil {
		return err
	}
	d.op("restore", took, theirs, "delete, new container from the snapshot")
	now, err := d.read(ctx, d.sandbox, work, nil)
	if err != nil {
		return err
	}
	n := d.before.differing(now)
	d.prove(n == 0 && len(now) == len(d.before), "every file is back", fmt.Sprintf(": %d paths, SHA-256, mode and owner, %d differ", len(now), n))
	status, err := d.must(ctx, d.sandbox, project, "git status --porcelain && git fsck --no-progress --no-dangling")
	if err != nil {
		return err
	}
	d.prove(status == "", "git status is clean, and git fsck finds nothing", status)
	rows, err := d.must(ctx, d.sandbox, work, "sqlite3 plan.db 'select count(*) from plan'")
	if err != nil {
		return err
	}
	d.prove(rows == "3", "the table is back", ": "+rows+" rows")
	d.prove(r.Undo != "", "what it did is not lost either", ": checkpoint "+r.Undo)
	return nil
}
