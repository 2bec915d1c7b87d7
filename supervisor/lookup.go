package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// StatusErr is an error that ends sparkrun with a documented exit status before
// a run exists. Its text is a sentence for the user.
type StatusErr struct {
	Status int
	Err    error
}

func (e *StatusErr) Error() string { return e.Err.Error() }

func (e *StatusErr) Unwrap() error { return e.Err }

func failf(status int, format string, args ...any) error {
	return &StatusErr{Status: status, Err: fmt.Errorf(format, args...)}
}

// lookCommand finds the program a shell would run for name, on the PATH of env,
// seen from dir. Its errors carry status 127 (not found) or 126 (cannot be
// executed).
func lookCommand(name, dir string, env []string) (string, error) {
	if name == "" {
		return "", failf(StatusNotFound, "the command is empty; write it after --, as in: sparkrun -- python train.py")
	}
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if err := executable(path); err != nil {
			return "", commandErr(name, err)
		}
		return path, nil
	}
	var denied error
	for _, d := range filepath.SplitList(lookupEnv(env, "PATH")) {
		if d == "" {
			d = "."
		}
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		path := filepath.Join(d, name)
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", commandErr(name, denied)
	}
	return "", failf(StatusNotFound, "command not found: %s is not on the PATH; nothing was started", name)
}

func commandErr(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return failf(StatusNotFound, "command not found: %s does not exist; nothing was started", name)
	}
	return failf(StatusCannotExec, "%s cannot be executed: %w; nothing was started", name, err)
}

var (
	errIsDir    = errors.New("it is a folder")
	errIsNoFile = errors.New("it is no regular file (a pipe, socket or device)")
	errNoExecOK = errors.New("it has no permission to be executed (chmod +x, or name its interpreter: python3 FILE)")
)

func executable(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			return pe.Err
		}
		return err
	}
	if st.IsDir() {
		return errIsDir
	}
	if !st.Mode().IsRegular() {
		return errIsNoFile
	}
	if st.Mode()&0o111 == 0 || unix.Access(path, unix.X_OK) != nil {
		return errNoExecOK
	}
	return nil
}

// lookupEnv returns the last value of name in env, as exec does.
func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(env[i], "="); ok && k == name {
			return v
		}
	}
	return ""
}
