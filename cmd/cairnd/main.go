// Command cairnd is the daemon. See cairnd --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"cairn/cmd/cairnd/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
