// Package api serves Cairn over HTTP.
//
// openapi.yaml is the contract: the types (package types), the routes and the
// request decoding (server.gen.go) and the client (package client) are generated
// from it, and every request is validated against it before a handler runs.
//
// Words. An operation is one method at one path of the contract, with its own
// operationId. Its class bounds it: quick and work have a time limit, stream has
// none. A problem is an RFC 9457 document with a stable code.
//
// Invariants:
//
//   - Handlers only translate: every decision about sandboxes is made behind the
//     interfaces in ports.go.
//   - One place (problem.go) maps error codes to HTTP statuses. What is not an
//     error of the domain becomes "internal" with the request's id, and its text
//     goes to the log only.
//   - An answer that fails after its first byte is cut off (the connection is
//     aborted), never ended as though it were whole.
//   - No request waits for a place without bound, and no body is read without one.
package api
