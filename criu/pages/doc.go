// Package pages stores the memory in CRIU's images in less room.
package pages
