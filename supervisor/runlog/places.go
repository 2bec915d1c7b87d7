package runlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Places says where things lie for this user: the environment it is asked from,
// the home folder and the working directory.
type Places struct {
	// Getenv reads the environment; nil means an empty one.
	Getenv func(string) string
	// Home is the user's home folder, empty when there is none (a service).
	Home string
	// Cwd is the working directory, absolute.
	Cwd string
	// SocketRoot is the folder that holds the socket folder; empty means /tmp,
	// which is what every process of a run must agree on.
	SocketRoot string
	// Local says whether a folder is on a local file system; nil asks the
	// kernel.
	Local func(dir string) bool
}

// HostPlaces returns the places of this process. A working directory that was
// removed is given as "".
func HostPlaces() Places {
	home, _ := os.UserHomeDir()
	cwd, _ := os.Getwd()
	return Places{Getenv: os.Getenv, Home: home, Cwd: cwd}
}

func (p Places) env(name string) string {
	if p.Getenv == nil {
		return ""
	}
	return p.Getenv(name)
}

func (p Places) xdg(variable string, underHome ...string) string {
	// The XDG specification tells to ignore a path that is not absolute.
	if dir := p.env(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, appName)
	}
	if p.Home != "" {
		return filepath.Join(append(append([]string{p.Home}, underHome...), appName)...)
	}
	// A service without a home: beside the sockets, in a folder that is
	// checked to be ours alone.
	return filepath.Join(p.socketDirPath(), underHome[len(underHome)-1])
}

// State returns the folder for the index and for runs that cannot lie in the
// working directory: $XDG_STATE_HOME/sparkrun-train, else
// ~/.local/state/sparkrun-train. It is not made.
func (p Places) State() string { return p.xdg("XDG_STATE_HOME", ".local", "state") }

// Config returns the folder of the user's settings: $XDG_CONFIG_HOME/sparkrun-train,
// else ~/.config/sparkrun-train. It is not made.
func (p Places) Config() string { return p.xdg("XDG_CONFIG_HOME", ".config") }

func (p Places) socketDirPath() string {
	root := p.SocketRoot
	if root == "" {
		root = "/tmp"
	}
	return filepath.Join(root, appName+"-"+strconv.Itoa(os.Getuid()))
}

// SocketDir returns the folder for this user's sockets and locks, made if
// needed; see the function of the same name.
func (p Places) SocketDir() (string, error) {
	return privateDir(p.socketDirPath(), os.Getuid())
}

// SocketDir returns /tmp/sparkrun-train-<uid>, made with mode 0700 if it is not
// there. Anyone may make names in /tmp, so a folder that is a link, belongs to
// somebody else or is open to others is refused: whoever owns it could take the
// run over.
func SocketDir(uid int) (string, error) {
	return privateDir(filepath.Join("/tmp", appName+"-"+strconv.Itoa(uid)), uid)
}

func privateDir(dir string, uid int) (string, error) {
	switch err := os.Mkdir(dir, 0o700); {
	case err == nil:
		// A umask can only have taken bits away; the owner needs all three.
		if err := os.Chmod(dir, 0o700); err != nil {
			return "", fmt.Errorf("making the socket folder: %w", err)
		}
	case !errors.Is(err, fs.ErrExist):
		return "", fmt.Errorf("making the socket folder: %w", err)
	}
	if err := checkPrivate(dir, uid); err != nil {
		return "", err
	}
	return dir, nil
}

// checkPrivate returns an error unless dir is a folder of this user's alone.
func checkPrivate(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("checking the socket folder: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("refusing %s for sockets: it is a %s, not a folder; remove it", dir, kindOf(info.Mode()))
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != uid {
		return fmt.Errorf("refusing %s for sockets: it belongs to user %d, not to user %d; have it removed", dir, ownerOf(info), uid)
	}
	if perm := info.Mode().Perm(); perm != 0o700 {
		return fmt.Errorf("refusing %s for sockets: its mode is %04o, not 0700; run: chmod 700 %s", dir, perm, dir)
	}
	return nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "symbolic link"
	case m.IsRegular():
		return "file"
	default:
		return "special file"
	}
}

func ownerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// remote lists the statfs magic numbers of file systems that lie on another
// machine or behind a process of the user's: locks, rename and fsync do not keep
// their promises there, and a run's second-by-second writes would cross a
// network. From linux/magic.h and the file systems' own sources.
var remote = map[uint32]string{
	0x6969:     "NFS",
	0x517b:     "SMB",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x01021997: "9p",
	0x65735546: "FUSE",
	0x5346414f: "AFS",
	0x6b414653: "AFS",
	0x00c36400: "Ceph",
	0x0bd00bd0: "Lustre",
	0x47504653: "GPFS",
	0x19830326: "BeeGFS",
	0x564c:     "NCP",
	0x73757245: "Coda",
	0x01161970: "GFS2",
	0x7461636f: "OCFS2",
	0x20030528: "OrangeFS",
	0x786f4256: "a VirtualBox share",
	0xbacbacbc: "a VMware share",
}

// isLocal says whether dir is on a local file system, and otherwise what it is
// on. Where the kernel does not say, it counts as local.
func (p Places) isLocal(dir string) (bool, string) {
	if p.Local != nil {
		return p.Local(dir), "not a local file system"
	}
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return true, ""
		}
		name, found := remote[uint32(st.Type)] //nolint:gosec // the magic is 32 bits; the field is wider and signed on some machines
		return !found, "on " + name
	}
}
