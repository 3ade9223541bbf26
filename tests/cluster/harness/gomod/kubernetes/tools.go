// Package testcluster pins the programs of the test cluster; they are built with `go build tool`.
// Nothing of them is imported: go.mod's tool list says what is built, go.sum that it is what it was.
package testcluster
