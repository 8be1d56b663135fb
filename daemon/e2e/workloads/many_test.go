package workloads

import "testing"

// TestGo checkpoints a Go program: goroutines, its runtime's threads, tickers.
func TestGo(t *testing.T) { talker("/w/agent", "hold").cycle(t) }

// TestJava checkpoints a virtual machine with a compiler, collectors, a pool and a timer.
func TestJava(t *testing.T) {
	talker("/usr/lib/jvm/java-21-openjdk-amd64/bin/java", "-Xmx64m", "/w/Hold.java").cycle(t)
}

// TestThousandThreads has 1,000 threads, each blocked in a system call of its own.
func TestThousandThreads(t *testing.T) { talker("/w/agent", "threads", "1000").cycle(t) }

// TestThreeHundredProcesses has a tree of 300 processes that talk by pipes.
func TestThreeHundredProcesses(t *testing.T) { talker("/w/agent", "tree", "300").cycle(t) }
