package runlog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sparkrun/internal/clock"
	"sparkrun/internal/event"
)

var secretEnv = []string{
	"WANDB_API_KEY=5ba1f00dcafe5ba1f00dcafe", "MY_PASSWORD=hunter2xyzzy", "LONGER_PASSWORD=hunter2xyzzy-and-more",
	"QUOTED_SECRET=pa\"ss\\word\n2nd line", "DB_CREDS=joe/7hunter7", "FILE_TOKEN=fromafile\n", "WORD_PASSWORD=attempts",
	"SLASH_KEY=/aB3dEfGh1JkLmN0pQ",
	// No secrets, or none that can be looked for.
	"SHORT_TOKEN=abc", "USE_AUTH=true", "PIN_TOKEN=123456789", "BIN_KEY=/usr/bin/python3", "OFF_KEY=disabled", "SORT_KEY=file_name",
	"HOME=/home/someone", "PLAIN=notasecretatall", "EMPTY_KEY=", "no equals sign",
}

func TestRedactorFindsValuesWhereverTheyStand(t *testing.T) {
	t.Parallel()
	r := NewRedactor(secretEnv)
	for in, want := range map[string]string{
		"wandb login 5ba1f00dcafe5ba1f00dcafe":       "wandb login [redacted]",
		"hunter2xyzzy":                               "[redacted]",
		"x=hunter2xyzzy-and-more;":                   "x=[redacted];",
		"a pa\"ss\\word\n2nd line b":                 "a [redacted] b",
		"login fromafile now":                        "login [redacted] now",
		"joe/7hunter7":                               "[redacted]",
		"key /aB3dEfGh1JkLmN0pQ":                     "key [redacted]",
		"abc true 123456789 /usr/bin/python3":        "abc true 123456789 /usr/bin/python3",
		"disabled notasecretatall file_name":         "disabled notasecretatall file_name",
		"and by its form hf_abcdefABCDEF1234567890.": "and by its form [redacted].",
	} {
		if got := r.Text(in); got != want {
			t.Errorf("Text(%q) = %q", in, got)
		}
		if got := r.Config(in); got != want {
			t.Errorf("Config(%q) = %q", in, got)
		}
		if got := r.Argv([]string{"sh", "-c", in}); got[2] != want {
			t.Errorf("Argv(%q) = %q", in, got)
		}
	}
	argv := []string{"python", "t.py", "hunter2xyzzy", "--api_key", "zzz", "--lr", "1e-4"}
	if d := cmp.Diff([]string{"python", "t.py", Redacted, "--api_key", Redacted, "--lr", "1e-4"}, r.Argv(argv)); d != "" {
		t.Error(d)
	}
	if argv[2] != "hunter2xyzzy" {
		t.Error("the argument was changed")
	}
	env := r.Env(append([]string{"CMD=wandb login 5ba1f00dcafe5ba1f00dcafe"}, secretEnv...))
	if env["CMD"] != "wandb login [redacted]" || env["MY_PASSWORD"] != Redacted || env["DB_CREDS"] != Redacted || env["PLAIN"] != "notasecretatall" {
		t.Errorf("%q", env)
	}
}

func TestRedactorOfNothingIsThePackage(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]string{"HOME=/x", "SHORT_KEY=abc"})
	argv := []string{"x", "--api_key", "abc"}
	if d := cmp.Diff(RedactArgv(argv), r.Argv(argv)); d != "" {
		t.Error(d)
	}
	if r.Argv(nil) != nil || r.Text("abc hunter2xyzzy") != "abc hunter2xyzzy" || r.Config("token: x1y2z3") != RedactConfig("token: x1y2z3") {
		t.Error("not what the package functions say")
	}
}

// No file of a run but the command's own lines has a value in it, and every file
// can still be read.
func TestRedactorInTheFilesOfARun(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	r := NewRedactor(secretEnv)
	d.SetRedactor(r)
	clk := clock.Start()
	l, err := OpenLog(d, clk)
	if err != nil {
		t.Fatal(err)
	}
	l.SetRedactor(r)
	const key, quoted = "5ba1f00dcafe5ba1f00dcafe", "pa\"ss\\word\n2nd line"
	l.Event(event.Event{Kind: event.Internal, Label: "start " + key, Msg: "wandb login " + key, Data: map[string]any{
		"argv": []string{"login", quoted, key}, "attempts": "hunter2xyzzy", "n": 3,
	}})
	l.Line(time.Time{}, []byte("the child prints "+key))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	m := &Manifest{
		ID: d.ID, Argv: []string{"sh", "-c", "wandb login " + key}, State: StateFailed, Result: "failed: " + quoted,
		Env: map[string]string{"CMD": "x " + key, "MY_PASSWORD": "hunter2xyzzy"}, Attempts: []AttemptRecord{{
			N: 1, Changes: []Change{{Layer: "argv", Where: "--x", Before: key, After: "hunter2xyzzy"}}, Verdict: &VerdictSummary{Quote: "key " + key},
		}},
	}
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ManifestFile, EventsFile, LogFile} {
		b, err := os.ReadFile(filepath.Join(d.Path, name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		if name == LogFile {
			if !strings.Contains(text, "| the child prints "+key) {
				t.Error("the child's own line was changed")
			}
			text = text[:strings.Index(text, "the child")] + text[strings.Index(text, "the child prints "+key)+len("the child prints "+key):]
		}
		for _, secret := range []string{key, "hunter2", "2nd line"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q in it:\n%s", name, secret, text)
			}
		}
	}
	back, err := ReadManifest(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	if back.State != StateFailed || len(back.Attempts) != 1 || back.Argv[2] != "wandb login [redacted]" || back.Result != "failed: [redacted]" {
		t.Errorf("%+v", back)
	}
	b, err := os.ReadFile(d.File(EventsFile))
	if err != nil {
		t.Fatal(err)
	}
	var e struct{ Data map[string]any }
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if e.Data["attempts"] != Redacted || e.Data["n"] != 3.0 {
		t.Errorf("%v", e.Data)
	}
}

func TestRedactorJSONKeepsKeysAndContracts(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]string{"A_PASSWORD=attempts", "B_PASSWORD=succeeded"})
	const in = `{"attempts": [{"state":"succeeded", "text":"all attempts succeeded", "attempts" : "attempts"}], "cut": "x`
	const want = `{"attempts": [{"state":"succeeded", "text":"all [redacted] [redacted]", "attempts" : "[redacted]"}], "cut": "x`
	if got := string(r.JSON([]byte(in))); got != want {
		t.Errorf("%s", got)
	}
}

func TestRedactLogins(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"curl -u joe:s3cret https://x/y":                          "curl -u joe:[redacted] https://x/y",
		"curl -sS --user joe:s3cret https://x && id -u 1000:1000": "curl -sS --user joe:[redacted] https://x && id -u 1000:1000",
		"curl --user=joe:s3cret -U p:q http://x":                  "curl --user=joe:[redacted] -U p:[redacted] http://x",
		"/usr/bin/curl -ujoe:s3cret http://x":                     "/usr/bin/curl -ujoe:[redacted] http://x",
		"docker run -u 1000:1000 --user a:b img":                  "docker run -u 1000:1000 --user a:b img",
		"Authorization: Basic am9lOnB3MTIz":                       "Authorization: [redacted]",
		`curl -H "authorization: basic am9lOnB3MTIz" http://x`:    `curl -H "authorization: [redacted]" http://x`,
		"a basic understanding of Basic training":                 "a basic understanding of Basic training",
	} {
		if got := RedactText(in); got != want {
			t.Errorf("RedactText(%q) = %q", in, got)
		}
		if got := RedactArgv([]string{"sh", "-c", in})[2]; got != want {
			t.Errorf("RedactArgv(%q) = %q", in, got)
		}
		if words := strings.Fields(in); !strings.Contains(in, `"`) && strings.Contains(in, "-u") && !strings.Contains(in, "&&") {
			if got := strings.Join(RedactArgv(words), " "); got != want {
				t.Errorf("RedactArgv(%q) = %q", words, got)
			}
		}
	}
	got := Redact([]string{"AWS_CREDS=x", "GIT_CRED=x", "CRED_PATH=/x", "CREDIT_LIMIT=3", "SACRED_ID=4"})
	want := map[string]string{"AWS_CREDS": Redacted, "GIT_CRED": Redacted, "CRED_PATH": "/x", "CREDIT_LIMIT": "3", "SACRED_ID": "4"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestRunsFolderThatIsALinkToNowhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "runs")
	if err := os.Symlink("gone", link); err != nil {
		t.Fatal(err)
	}
	for _, runs := range []string{link, link + "/", filepath.Join(link, "below")} {
		_, err := Create(Places{Cwd: dir}, runs, "x", time.Now())
		if err == nil || !strings.Contains(err.Error(), link+" is a link to gone, which is not there") {
			t.Errorf("%s: %v", runs, err)
		}
	}
}
