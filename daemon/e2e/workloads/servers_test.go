package workloads

import (
	"strconv"
	"strings"
	"testing"
)

// TestNode has a server with timers and a file watcher. Its clients connect anew.
func TestNode(t *testing.T) {
	get := func(b *box, path string) string {
		b.t.Helper()
		return b.sh("python3 /w/get.py 'http://127.0.0.1:8080" + path + "'")
	}
	workload{
		start: func(b *box) []string {
			id := b.daemon("node", "/w/server.js")
			b.eventually("it listens", func() bool { return b.tries("", "python3", "/w/get.py", "http://127.0.0.1:8080/") })
			return []string{id}
		},
		state:  func(b *box, _ []string) string { return get(b, "/") + " files " + b.sh("ls /w/watched | xargs") },
		change: func(b *box, _ []string, word string) { get(b, "/?word="+word) },
		revived: func(b *box, _ []string) {
			ticks := func() int { return must(strconv.Atoi(get(b, "/ticks")))(b.t) }
			was := ticks()
			b.eventually("the timer goes on", func() bool { return ticks() > was })
		},
	}.cycle(t)
}

const nginxConf = `
worker_processes 4; daemon off; pid /tmp/nginx.pid; error_log /tmp/nginx.log; user www-data;
events { worker_connections 64; }
http {
  access_log /tmp/access.log;
  server { listen 127.0.0.1:8081 reuseport; root /w/site; location = /pid { return 200 $pid; } }
}`

// TestNginx has a master and four workers, each with a listening socket of its own, and
// has them read their configuration anew afterwards.
func TestNginx(t *testing.T) {
	get := func(b *box, path string) string { return b.sh("python3 /w/get.py 'http://127.0.0.1:8081" + path + "'") }
	workload{
		start: func(b *box) []string {
			b.sh("mkdir -p /w/site /var/log/nginx /var/lib/nginx; echo hello >/w/site/index.html; cat >/w/nginx.conf <<'END'" + nginxConf + "\nEND")
			id := b.daemon("nginx", "-c", "/w/nginx.conf")
			b.eventually("it listens", func() bool { return b.tries("", "python3", "/w/get.py", "http://127.0.0.1:8081/") })
			return []string{id}
		},
		// The pids of the workers, and the lines of the log, which they hold open.
		state: func(b *box, _ []string) string {
			return b.sh("pgrep -P $(cat /tmp/nginx.pid) | xargs") + " served " + b.sh("grep -c . /tmp/access.log") + " " + b.sh("cat /w/site/words || true")
		},
		change: func(b *box, _ []string, word string) {
			b.sh("echo " + word + " >>/w/site/words")
			for range 4 {
				if got := get(b, "/words"); !strings.HasSuffix(got, word) {
					b.t.Fatalf("it serves %q", got)
				}
			}
			was := b.sh("pgrep -P $(cat /tmp/nginx.pid) | xargs")
			b.sh("kill -HUP $(cat /tmp/nginx.pid)")
			b.eventually("there are other workers", func() bool {
				now := strings.Fields(b.sh("pgrep -P $(cat /tmp/nginx.pid) | xargs"))
				for _, pid := range now {
					if strings.Contains(was, pid) {
						return false
					}
				}
				return len(now) == 4
			})
		},
	}.cycle(t)
}

// TestRedis has a dataset that only memory has, and a child that saves it.
func TestRedis(t *testing.T) {
	cli := func(b *box, command string) string { return b.sh("redis-cli -s /tmp/redis " + command) }
	workload{
		start: func(b *box) []string {
			id := b.daemon("redis-server", "--port", "6379", "--unixsocket", "/tmp/redis", "--save", "", "--dir", "/tmp", "--enable-debug-command", "local")
			b.eventually("it answers", func() bool { return b.tries("", "redis-cli", "-s", "/tmp/redis", "ping") })
			cli(b, "DEBUG POPULATE 50000 key 64")
			return []string{id}
		},
		state: func(b *box, _ []string) string {
			return cli(b, "DEBUG DIGEST") + " " + cli(b, "DBSIZE") + " " + cli(b, "LRANGE words 0 -1 | xargs")
		},
		change: func(b *box, _ []string, word string) {
			cli(b, "RPUSH words "+word)
			cli(b, "SET key:77 "+word)
			cli(b, "DEL key:"+strconv.Itoa(100+len(word)))
			saves := func() string { return cli(b, "INFO persistence | grep rdb_saves:") }
			was := saves()
			cli(b, "BGSAVE")
			b.eventually("it has saved", func() bool { return saves() != was })
		},
	}.cycle(t)
}
