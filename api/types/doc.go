// Package types holds what the API's bodies and parameters are made of. It is
// generated from the contract and shared by the server and the client.
package types
