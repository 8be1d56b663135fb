// Package webhook posts small JSON documents to addresses that the operator allows. It
// implements sandbox.Webhooks.
//
// An allowed prefix is an address without query; what is below it by whole path segments
// may be posted to. The address is the caller's, so nothing else decides where a request
// goes: redirects are not followed, no proxy is taken from the environment, and of an
// answer only the status is looked at.
package webhook
