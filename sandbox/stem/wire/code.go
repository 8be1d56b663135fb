package wire

// Codes of a Failure.
const (
	CodeCommandNotFound  = "command_not_found" // no such file, or its interpreter is missing
	CodePermissionDenied = "permission_denied" // not executable by that user, or not a program
	CodeBadCwd           = "bad_cwd"
	CodeBadUser          = "bad_user"
	CodeLimit            = "limit" // processes, memory, descriptors, or size of the arguments
	CodeInternal         = "internal"
	CodeBadRequest       = "bad_request"
	CodeUnsupported      = "unsupported"
	CodeExists           = "exists"
	CodeNotFound         = "not_found"
	CodeNotRunning       = "not_running"
	CodeBusy             = "busy"
	CodeTampered         = "tampered" // the control directory is not as the stem made it
)
