package standalone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// unclear is how long a lock may be held by nobody that can be found: another start
	// that has not written its pid, or a sampler on its way out.
	unclear = 2 * time.Second
	// occupyWait bounds all the waiting for a place.
	occupyWait = 20 * time.Second
)

// place is a log with its pid file, both of them ours.
type place struct {
	log *logFile
	pid *pidFile
}

// leave removes the pid file and closes the log, unless the log is the writer's still. A
// disk that hangs is waited for only so long.
func (p *place) leave(logIsFree bool) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		p.pid.remove()
		if logIsFree {
			p.log.close(true)
		}
	}()
	select {
	case <-gone:
	case <-time.After(lastWait):
	}
}

// drop leaves everything as it was.
func (p *place) drop() {
	p.log.close(true)
	p.pid.drop()
}

// occupy takes the log for this process. A sampler that writes it already is stopped
// first, as the runbook's script does; anything else in the way is an error.
func occupy(ctx context.Context, l *logFile, o Options) (*place, error) {
	path := PIDFile(l.path)
	began := time.Now()
	var unknown time.Time // since when the lock is held by nobody that can be found
	for {
		if ctx.Err() != nil {
			return nil, ErrEnded
		}
		if time.Since(began) > occupyWait {
			return nil, fmt.Errorf("%s is taken again and again by other samplers", l.path)
		}
		pf, err := openPID(path, true)
		if err != nil {
			return nil, err
		}
		if pf.mine {
			p, err := settle(l, pf, o)
			switch {
			case p != nil:
				return p, nil
			case err == nil:
				continue
			case !errors.Is(err, errLocked):
				return nil, err
			}
		}
		stopped, err := stopOwner(l, pf, o.Say)
		pf.drop()
		switch {
		case err != nil:
			return nil, err
		case stopped:
			unknown = time.Time{}
			continue
		case unknown.IsZero():
			unknown = time.Now()
		case time.Since(unknown) > unclear:
			return nil, taken(l, pf)
		}
		time.Sleep(glance)
	}
}

// settle opens the log and writes the pid, now that the pid file is locked. Whoever it
// names is looked at first. Neither a place nor an error: a sampler was stopped that held
// no lock, so all has to be looked at anew. With errLocked the pid file is still ours.
func settle(l *logFile, pf *pidFile, o Options) (*place, error) {
	if err := l.open(); err != nil {
		if !errors.Is(err, errLocked) {
			pf.drop()
		}
		return nil, err
	}
	p := &place{log: l, pid: pf}
	again, err := p.displace(o)
	if err == nil && !again {
		if err = pf.write(self()); err == nil {
			return p, nil
		}
	}
	p.drop()
	return nil, err
}

// displace stops the sampler that the pid file names, where it holds no lock; again says
// that it did.
func (p *place) displace(o Options) (again bool, err error) {
	old, ok := hold(p.pid.pid)
	if !ok {
		return false, nil
	}
	defer old.release()
	switch {
	case old.pid == self():
	case isSampler(old.pid, p.files(), false):
		o.Say(stopping(old.pid))
		return true, old.stop()
	case writes(old.pid, p.log.path):
		return false, foreign(old.pid, p.log.path)
	default:
		o.Note(leftAlone(p.pid))
	}
	return false, nil
}

func (p *place) files() []inode { return inodes(p.log.file, p.pid.file) }

func inodes(files ...*os.File) []inode {
	var all []inode
	for _, f := range files {
		if i, ok := inodeOf(f); ok {
			all = append(all, i)
		}
	}
	return all
}

// stopOwner stops the sampler that holds the lock of the log or of its pid file. false
// says that no such process is to be found.
func stopOwner(l *logFile, pf *pidFile, say func(string)) (bool, error) {
	log, err := l.openThere(os.O_RDONLY)
	if err == nil {
		defer log.Close()
	}
	p, ok := find(pf.pid, inodes(log, pf.file))
	if !ok {
		return false, nil
	}
	defer p.release()
	say(stopping(p.pid))
	return true, p.stop()
}

func stopping(pid int) string { return fmt.Sprintf("Stopping existing sampler (pid %d)", pid) }

func leftAlone(pf *pidFile) string {
	return fmt.Sprintf("%s named %s, which is no sampler of this log and is left alone", pf.path, describe(pf.pid))
}

func foreign(pid int, log string) error {
	return fmt.Errorf("%s has %s open and is no sampler of sparkrun: end it, or name another log", describe(pid), log)
}

// taken says that a lock is held by somebody who is not ours to stop.
func taken(l *logFile, pf *pidFile) error {
	who := "one of another user, or in a container"
	if p, ok := hold(pf.pid); ok {
		p.release()
		who = "its pid file names " + describe(pf.pid)
	}
	return fmt.Errorf("%s is being written by a process that is not ours to stop (%s): it is left alone; name another log", l.path, who)
}

// Stop ends the sampler of a log, waits until it is gone, and removes a pid file that it
// left behind. Where there is none it says so and that is no error. say and note are as in
// Options.
func Stop(log string, say, note func(string)) error {
	l := &logFile{path: log}
	path := PIDFile(log)
	began := time.Now()
	stopped := false
	for {
		pf, err := openPID(path, false)
		if errors.Is(err, os.ErrNotExist) {
			// The log itself may be held: its pid file was removed by hand.
			pf, err = &pidFile{path: path}, nil
		}
		if err != nil {
			return err
		}
		again, err := stopOnce(l, pf, say, note, &stopped)
		if err != nil || !again {
			return err
		}
		if time.Since(began) > unclear && !stopped || time.Since(began) > occupyWait {
			return taken(l, pf)
		}
		time.Sleep(glance)
	}
}

// stopOnce looks once; again says that somebody is still there.
func stopOnce(l *logFile, pf *pidFile, say, note func(string), stopped *bool) (again bool, err error) {
	if pf.file != nil {
		defer pf.close()
	}
	found, err := stopOwner(l, pf, say)
	*stopped = *stopped || found
	if err != nil {
		return false, err
	}
	if pf.file != nil && !pf.mine {
		return true, nil
	}
	if log, err := l.openThere(os.O_RDONLY); err == nil {
		free, lerr := lock(log)
		_ = log.Close()
		if lerr == nil && !free {
			return true, nil
		}
	}
	if old, ok := hold(pf.pid); ok {
		old.release()
		if writes(pf.pid, l.path) {
			return false, foreign(pf.pid, l.path)
		}
		note(leftAlone(pf))
	}
	if pf.mine && names(pf.path, pf.file) {
		_ = os.Remove(pf.path) // a stale one does no harm
	}
	if !*stopped {
		say("No sampler of " + l.path + " is running")
	}
	return false, nil
}
