// Package overlay keeps layers of files and puts stacks of them under
// running containers.
package overlay
