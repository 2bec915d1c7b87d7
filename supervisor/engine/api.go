package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"sparkrun/internal/lazyre"
)

// maxAnswer is the longest answer read from an engine; a real inspect has some
// tens of KiB.
const maxAnswer = 8 << 20

// callLimit is the longest a question may take; what may take longer (stop,
// wait, events) has limits of its own.
const callLimit = 5 * time.Second

// errGone is an answer that the container or exec does not exist.
var errGone = errors.New("the engine does not know it")

// validID is what an engine's ids look like; names have more letters but never
// a slash.
var validID = lazyre.New(`^[0-9a-f]{12,64}$`)

// api is the HTTP API of one engine. The paths carry no version: an engine then
// takes its newest, and what is used here has had the same form since 1.24. A
// fixed version would be refused, since docker 29 dropped everything under 1.44.
//
// Each question has a connection of its own. net/http's client would keep them,
// and prints to stderr by itself when an engine talks out of turn.
type api struct{ socket string }

func newAPI(socket string) *api { return &api{socket: socket} }

// maxHeader is the longest header of an answer that is read.
const maxHeader = 64 << 10

// answer is the body of an answer; closing it ends the connection.
type answer struct {
	io.Reader
	conn net.Conn
	stop func() bool
}

func (b *answer) Close() error {
	b.stop()
	return b.conn.Close()
}

// open sends a request and returns the answer's body if its status is good. path
// is escaped. The caller closes the body, and ctx is what bounds it.
func (a *api) open(ctx context.Context, method, path string, query url.Values, body any) (io.ReadCloser, http.Header, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, nil, fmt.Errorf("encoding a request: %w", err)
		}
		in = bytes.NewReader(b)
	}
	target := "http://engine" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, in)
	if err != nil {
		return nil, nil, fmt.Errorf("making a request: %w", &cleanError{err})
	}
	req.Close = true
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", a.socket)
	if err != nil {
		return nil, nil, a.explain(ctx, err)
	}
	b := &answer{conn: conn, stop: context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })}
	// An engine may refuse and close without having read everything: what it
	// says is read all the same.
	wrote := req.Write(conn)
	head := &io.LimitedReader{R: conn, N: maxHeader}
	res, err := http.ReadResponse(bufio.NewReader(head), req) //nolint:bodyclose // closing the connection is all that is needed
	if err != nil {
		b.Close()
		return nil, nil, a.explain(ctx, errors.Join(wrote, err))
	}
	head.N = math.MaxInt64
	b.Reader = res.Body
	if res.StatusCode < 300 || res.StatusCode == http.StatusNotModified {
		return b, res.Header, nil
	}
	defer b.Close()
	said, _ := io.ReadAll(io.LimitReader(b, 4096))
	var m struct{ Message string }
	text := strings.TrimSpace(string(said))
	if json.Unmarshal(said, &m) == nil && m.Message != "" {
		text = m.Message
	}
	if res.StatusCode == http.StatusNotFound {
		return nil, nil, fmt.Errorf("%w: %s", errGone, brief(text))
	}
	return nil, nil, &statusError{code: res.StatusCode, text: brief(text)}
}

// statusError is an answer of an engine that refuses.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the engine refused with status %d: %s", e.code, e.text)
}

// explain makes a sentence of what went wrong with a connection.
func (a *api) explain(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the engine does not answer on %s: %w", a.socket, context.DeadlineExceeded)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: %w (is this user in the engine's group?)", a.socket, os.ErrPermission)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("there is no socket %s: %w", a.socket, os.ErrNotExist)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no engine listens on %s: %w", a.socket, syscall.ECONNREFUSED)
	}
	return fmt.Errorf("the engine on %s: %w", a.socket, &cleanError{err})
}

// cleanError shows an error without what an engine may have written into it.
type cleanError struct{ err error }

func (e *cleanError) Error() string { return brief(e.err.Error()) }
func (e *cleanError) Unwrap() error { return e.err }

// call sends a request and decodes the answer into v, which may be nil.
func (a *api) call(ctx context.Context, limit time.Duration, method, path string, query url.Values, body, v any) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, h, err := a.open(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return nil, a.explain(ctx, err)
	}
	if len(b) > maxAnswer {
		return nil, fmt.Errorf("the engine on %s answers with more than %d MiB: not read", a.socket, maxAnswer>>20)
	}
	if v == nil {
		return h, nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return nil, fmt.Errorf("the engine on %s answers with something else than was asked for: %w", a.socket, &cleanError{err})
	}
	return h, nil
}

// ping asks whether an engine is there at all.
func (a *api) ping(ctx context.Context, limit time.Duration) error {
	h, err := a.call(ctx, limit, http.MethodGet, "/_ping", nil, nil, nil)
	if err != nil {
		return err
	}
	if h.Get("Api-Version") == "" {
		return fmt.Errorf("what answers on %s is no container engine", a.socket)
	}
	return nil
}

// inspected is what is used of a container's description.
type inspected struct {
	ID      string `json:"Id"`
	Name    string
	Created string
	State   struct {
		Status     string
		Running    bool
		Paused     bool
		Restarting bool
		OOMKilled  bool
		Pid        int
		ExitCode   int
		Error      string
		StartedAt  string
		FinishedAt string
	}
	HostConfig struct {
		Memory     int64
		AutoRemove bool
		PidMode    string
	}
	Config struct {
		Labels map[string]string
		Env    []string
	}
	ExecIDs []string
}

// pythonPath is the PYTHONPATH that the image or the client's words set.
func (i inspected) pythonPath() string {
	path := ""
	for _, e := range i.Config.Env {
		if value, ok := strings.CutPrefix(e, "PYTHONPATH="); ok {
			path = value // the last one wins
		}
	}
	return path
}

// started says whether the container's process has been started, or has ended.
func (i inspected) started() bool {
	switch i.State.Status {
	case "created", "configured", "initialized", "":
		return i.State.Running
	}
	return true
}

func (a *api) inspect(ctx context.Context, id string) (inspected, error) {
	var v inspected
	_, err := a.call(ctx, callLimit, http.MethodGet, "/containers/"+url.PathEscape(id)+"/json", nil, nil, &v)
	if err == nil && !validID.MatchString(v.ID) {
		return inspected{}, fmt.Errorf("the engine on %s describes a container without an id", a.socket)
	}
	return v, err
}

// byLabel returns the ids of the containers, running or not, with a label.
func (a *api) byLabel(ctx context.Context, label string) ([]string, error) {
	filter, err := json.Marshal(map[string][]string{"label": {label}})
	if err != nil {
		return nil, fmt.Errorf("encoding a filter: %w", err)
	}
	var list []struct {
		ID string `json:"Id"`
	}
	_, err = a.call(ctx, callLimit, http.MethodGet, "/containers/json", url.Values{"all": {"1"}, "filters": {string(filter)}}, nil, &list)
	var ids []string
	for _, c := range list {
		if validID.MatchString(c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return ids, err
}

// execInspected is what is used of an exec's description.
type execInspected struct {
	ID            string
	Running       bool
	ExitCode      *int
	Pid           int
	ContainerID   string
	ProcessConfig struct {
		Entrypoint string          `json:"entrypoint"`
		Arguments  json.RawMessage `json:"arguments"`
	}
}

// argv is the command of an exec.
func (e execInspected) argv() []string {
	var args []string
	_ = json.Unmarshal(e.ProcessConfig.Arguments, &args) // null where there are none
	return append([]string{e.ProcessConfig.Entrypoint}, args...)
}

func (a *api) execInspect(ctx context.Context, id string) (execInspected, error) {
	var v execInspected
	_, err := a.call(ctx, callLimit, http.MethodGet, "/exec/"+url.PathEscape(id)+"/json", nil, nil, &v)
	return v, err
}

// top returns the host's pids inside a container. Podman's service looks for a
// column of its own; docker runs ps with what it is given.
func (a *api) top(ctx context.Context, id string) ([]int, error) {
	for _, args := range []string{"", "hpid,pid"} {
		q := url.Values{"stream": {"false"}}
		if args != "" {
			q.Set("ps_args", args)
		}
		var v struct {
			Titles    []string
			Processes [][]string
		}
		_, err := a.call(ctx, callLimit, http.MethodGet, "/containers/"+url.PathEscape(id)+"/top", q, nil, &v)
		if errors.Is(err, errGone) || errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
		if pids := pidColumn(v.Titles, v.Processes, args != ""); len(pids) > 0 {
			return pids, nil
		}
	}
	return nil, errors.New("the engine does not list the container's processes")
}
