// Cairn-init is PID 1 and the stem of a sandbox. See package guest.
package main

import (
	"os"

	"cairn/sandbox/guest"
)

func main() {
	os.Exit(guest.Main(os.Args))
}
