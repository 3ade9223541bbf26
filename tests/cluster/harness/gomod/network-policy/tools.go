// Package netpol pins the program that enforces NetworkPolicy in the test cluster; it is built with `go build tool`.
// Nothing of it is imported: go.mod's tool list says what is built, go.sum that it is what it was.
package netpol
