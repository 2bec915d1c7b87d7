package preflight

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChanges(t *testing.T) {
	t.Parallel()
	rep := Report{
		Findings: []Finding{
			{ID: "G1", Status: Pass, Repairs: []Repair{{Command: "never: it passed"}}},
			{ID: "G6", Status: Warn, Repairs: []Repair{{Command: "stop server"}}},
		},
		Host: []Finding{
			{ID: "H1", Status: Fail, Title: "driver", Cost: "no GPU", Repairs: []Repair{{Command: "modprobe nvidia", Root: true}, {Command: " "}}},
			{ID: "H9", Status: Warn, Repairs: []Repair{{Command: "stop server"}, {Command: "sysctl a=1"}}},
			{ID: "H10", Status: Info, Repairs: []Repair{{Command: "for every machine"}}},
			{ID: "H12", Status: Warn, Repairs: []Repair{{Command: "set-property"}}},
			{ID: "H11", Status: Skip, Repairs: []Repair{{Command: "never: it was not looked at"}}},
		},
	}
	var got []string
	for _, c := range rep.Changes() {
		got = append(got, c.ID+" "+c.Command)
	}
	if diff := cmp.Diff([]string{"H1 modprobe nvidia", "G6 stop server", "H9 sysctl a=1", "H12 set-property", "H10 for every machine"}, got); diff != "" {
		t.Error(diff)
	}
	if c := rep.Changes()[0]; c.Title != "driver" || c.Cost != "no GPU" || !c.Root {
		t.Errorf("%+v", c)
	}
	if len(Report{}.Changes()) != 0 {
		t.Error("changes out of nothing")
	}
}

func TestListChanges(t *testing.T) {
	t.Parallel()
	list := []Change{
		{ID: "H10", Title: "suspend", Repair: Repair{Command: "systemctl mask sleep.target", Effect: "no sleep; undo: unmask", Root: true}},
		{ID: "H9", Title: "a\x1b[2Jtitle", Repair: Repair{Command: "one\ntwo\n"}},
	}
	want := ` 1. H10 suspend (needs root)
      $ systemctl mask sleep.target
      no sleep; undo: unmask
 2. H9 a?[2Jtitle
      $ one
      $ two
`
	if diff := cmp.Diff(want, ListChanges(list, nil)); diff != "" {
		t.Error(diff)
	}
	if got := ListChanges(list, func(c Change) string { return "sudo " + c.Command }); !strings.Contains(got, "$ sudo systemctl mask") {
		t.Error(got)
	}
}
