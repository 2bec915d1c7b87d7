// Command guest is the program that the emulated machine of e2e/vm runs: the plan of
// checks, made with the real sparkrun beside it, and the workloads they need. It owns
// what happens inside the machine; the test outside only boots, listens and judges.
//
// Called without arguments it carries out the plan named on the kernel command line
// (sparkrun.plan=NAME) and says what came of it on its standard output, the serial
// console, one line for each fact:
//
//	PLAN name                    the plan has begun
//	RESULT name pass|fail text   one check
//	LOG text                     what a failed check leaves to look at
//	RESET                        pull the plug now
//	DONE n                       the plan is through, n results were given
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) > 1 {
		workload(os.Args[1], os.Args[2:])
		return
	}
	if err := carryOut(); err != nil {
		say("RESULT plan fail %v", err)
		say("DONE 1")
	}
}

// workload runs one of the programs that stand in for a training.
func workload(name string, args []string) {
	var err error
	switch name {
	case "as":
		err = runAs(args)
	case "fill":
		err = fill(args)
	case "train":
		err = train(args)
	case "deaf":
		err = deaf(args)
	default:
		err = fmt.Errorf("there is no workload %q", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}
