// Package engine reaches the container behind a container client. What sparkrun
// starts is `docker run` or `podman exec`, but the training is a child of the
// engine: a signal to the client may never arrive there, and a client killed
// with SIGKILL leaves the training running. This package finds the container,
// names its processes and cgroup, asks how it ended, and ends it.
//
// It speaks the Docker API, which podman's service speaks too, over a unix
// socket. Where podman has no service its containers are below our own holder
// in the process table, and the podman command names them.
//
// Everything here has a deadline: an engine that hangs costs an answer and
// nothing else. What an engine says comes from outside: names and numbers are
// checked before they become part of a path, a request or a signal, and answers
// are cut at a limit.
package engine
