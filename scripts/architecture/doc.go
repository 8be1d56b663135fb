// Package architecture tests the code base itself: who imports whom, and what
// every package and file must or must not have.
package architecture
