package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// runAs becomes another command: in a cgroup, with an OOM score and as a user. The plan
// itself must not be killed for memory, and what it starts must not inherit that.
func runAs(args []string) error {
	set := flag.NewFlagSet("as", flag.ContinueOnError)
	adj := set.Int("adj", 0, "oom_score_adj")
	uid := set.Int("uid", 0, "user and group")
	cgroup := set.String("cgroup", "", "cgroup folder to join")
	if err := set.Parse(args); err != nil {
		return err
	}
	argv := set.Args()
	if len(argv) == 0 {
		return errors.New("no command")
	}
	if *cgroup != "" {
		if err := os.WriteFile(filepath.Join(*cgroup, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("joining: %w", err)
		}
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*adj)), 0o644); err != nil {
		return err
	}
	if *uid != 0 {
		if err := unix.Setgroups(nil); err != nil {
			return err
		}
		if err := unix.Setresgid(*uid, *uid, *uid); err != nil {
			return err
		}
		if err := unix.Setresuid(*uid, *uid, *uid); err != nil {
			return err
		}
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// fill takes memory and keeps it. Its pages are mapped, not allocated, so that the Go
// runtime neither adds to them nor takes any back.
func fill(args []string) error {
	set := flag.NewFlagSet("fill", flag.ContinueOnError)
	units := set.Int64("units", 1, "how many units to take")
	per := set.Int64("per", 1024, "KiB of one unit")
	rate := set.Int64("rate", 0, "MiB a second, 0 for as fast as it goes")
	hold := set.Duration("hold", 0, "how long to keep them")
	file := set.String("map", "", "file to map and read before")
	if err := set.Parse(args); err != nil {
		return err
	}
	if *file != "" {
		if err := mapFile(*file); err != nil {
			return err
		}
	}
	const chunk = 1 << 20
	total := *units * *per << 10
	fmt.Printf("taking %d MiB\n", total>>20)
	begin := time.Now()
	for taken := int64(0); taken < total; {
		n := min(int64(chunk), total-taken)
		b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return fmt.Errorf("after %d MiB: %w", taken>>20, err)
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		taken += n
		if *rate > 0 {
			time.Sleep(time.Until(begin.Add(time.Duration(taken) * time.Second / time.Duration(*rate<<20))))
		}
	}
	fmt.Printf("took %d MiB\n", total>>20)
	time.Sleep(*hold)
	fmt.Println("fits")
	return nil
}

// mapFile maps a file and touches every page, as a trainer does with its weights.
func mapFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	sum := 0
	for i := 0; i < len(b); i += 4096 {
		sum += int(b[i])
	}
	fmt.Println("weights read", len(b)>>20, "MiB", sum)
	return nil
}

// train prints steps as a trainer does.
func train(args []string) error {
	set := flag.NewFlagSet("train", flag.ContinueOnError)
	steps := set.Int("steps", 10, "how many steps")
	each := set.Duration("each", 100*time.Millisecond, "time of a step")
	if err := set.Parse(args); err != nil {
		return err
	}
	for i := 1; i <= *steps; i++ {
		time.Sleep(*each)
		fmt.Printf("{'loss': %.4f, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': %.2f}\n", 3/float64(i), float64(i)/float64(*steps))
	}
	return nil
}

// deaf hears no signal that can be caught, and neither does the daemon that it leaves in
// a session of its own.
func deaf(args []string) error {
	set := flag.NewFlagSet("deaf", flag.ContinueOnError)
	children := set.Int("children", 0, "how many daemons to leave")
	if err := set.Parse(args); err != nil {
		return err
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for range *children {
		p, err := os.StartProcess(self, []string{self, "deaf"}, &os.ProcAttr{
			Files: []*os.File{nil, os.Stdout, os.Stderr}, Sys: &unix.SysProcAttr{Setsid: true},
		})
		if err != nil {
			return err
		}
		_ = p.Release()
	}
	fmt.Println("deaf", os.Getpid())
	time.Sleep(10 * time.Minute)
	return nil
}
