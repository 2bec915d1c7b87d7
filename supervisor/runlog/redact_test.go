package runlog

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestRedactEnvironment(t *testing.T) {
	t.Parallel()
	got := Redact([]string{
		"HF_TOKEN=abc", "WANDB_API_KEY=0123", "AWS_SECRET_ACCESS_KEY=x", "DB_PASSWORD=x", "MYSQL_PWD=x", "SENTRY_DSN=x",
		"MY_APIKEY=x", "NGC_CLI_API_KEY=x", "EMPTY_TOKEN=",
		"PATH=/usr/bin", "PWD=/tmp", "TOKENIZERS_PARALLELISM=false", "HF_TOKEN_PATH=/x/token", "GIT_ASKPASS=/bin/ask",
		"DB_PASSWORD_FILE=/run/p", "SPARKRUN_KNOB_API_KEY=1", "SSH_AUTH_SOCK=/tmp/s",
		"PIP_INDEX_URL=https://joe:pw@host/simple", "EXTRA=see hf_abcdefABCDEF1234567890 there",
		"OPTS=--hf_token s3cret --lr 1e-4", "no equals sign", "=x", "TWO=a=b",
	})
	want := map[string]string{
		"HF_TOKEN": Redacted, "WANDB_API_KEY": Redacted, "AWS_SECRET_ACCESS_KEY": Redacted, "DB_PASSWORD": Redacted,
		"MYSQL_PWD": Redacted, "SENTRY_DSN": Redacted, "MY_APIKEY": Redacted, "NGC_CLI_API_KEY": Redacted, "EMPTY_TOKEN": "",
		"PATH": "/usr/bin", "PWD": "/tmp", "TOKENIZERS_PARALLELISM": "false", "HF_TOKEN_PATH": "/x/token", "GIT_ASKPASS": "/bin/ask",
		"DB_PASSWORD_FILE": "/run/p", "SPARKRUN_KNOB_API_KEY": "1", "SSH_AUTH_SOCK": "/tmp/s",
		"PIP_INDEX_URL": "https://[redacted]@host/simple", "EXTRA": "see [redacted] there",
		"OPTS": "--hf_token [redacted] --lr 1e-4", "TWO": "a=b",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestRedactArgv(t *testing.T) {
	t.Parallel()
	// Words separated by one space; what is redacted on the right must not be
	// touched otherwise.
	for _, c := range []struct{ in, want string }{
		{"python train.py --hf_token X --lr 1e-4", "python train.py --hf_token [redacted] --lr 1e-4"},
		{"x --api-key=X --hub_token=Y", "x --api-key=[redacted] --hub_token=[redacted]"},
		{"x --apiKey X --wandb-api-key X", "x --apiKey [redacted] --wandb-api-key [redacted]"},
		{"x --token X -- y", "x --token [redacted] -- y"},
		{"x --token --lr 1", "x --token --lr 1"},
		{"x --password X", "x --password [redacted]"},
		{"docker run -e HF_TOKEN=X -eWANDB_API_KEY=Y --env=AWS_SECRET_ACCESS_KEY=Z img", "docker run -e HF_TOKEN=[redacted] -eWANDB_API_KEY=[redacted] --env=AWS_SECRET_ACCESS_KEY=[redacted] img"},
		{"env HF_TOKEN=X python a.py", "env HF_TOKEN=[redacted] python a.py"},
		{"x hub_token=X trainer.logger.api_key=Y", "x hub_token=[redacted] trainer.logger.api_key=[redacted]"},
		{"x hf_abcdefghij0123456789 https://u:p@h/r?x=1", "x [redacted] https://[redacted]@h/r?x=1"},
		{"x ghp_0123456789abcdefABCD AKIAIOSFODNN7EXAMPLE sk-proj-0123456789abcdef", "x [redacted] [redacted] [redacted]"},
		// What training commands really have, and a rung must be able to show.
		{"x --max_new_tokens 128 --pad_token <pad> --eos_token_id 2 --tokenizer_name t --text_key text --sort-key len", ""},
		{"x --use_auth_token True --num_key_value_heads 8 --key_dim 64 --model sk-learn-like-name-without-any", ""},
		{"x --data https://h/a@b --monkey 1 --keep tok --output_dir hf_trainer_out_dir", ""},
		{"x --knob seq_len=4096 {seq_len} --backend hf_transformers --name task-2026-01-01-experiment1", ""},
	} {
		if c.want == "" {
			c.want = c.in
		}
		in := strings.Split(c.in, " ")
		got := RedactArgv(in)
		if d := cmp.Diff(strings.Split(c.want, " "), got); d != "" {
			t.Errorf("%s:\n%s", c.in, d)
		}
		if strings.Join(in, " ") != c.in {
			t.Errorf("%s: the argument was changed", c.in)
		}
		if d := cmp.Diff(got, RedactArgv(got)); d != "" {
			t.Errorf("%s: not the same when done twice:\n%s", c.in, d)
		}
	}
}

func TestRedactInsideOneWord(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"HF_TOKEN=abc python train.py --lr 1", "HF_TOKEN=[redacted] python train.py --lr 1"},
		{"export WANDB_API_KEY='abc'; run", "export WANDB_API_KEY='[redacted]'; run"},
		{"login --token abc && go", "login --token [redacted] && go"},
		{`{"api_key": "abc", "lr": 1}`, `{"api_key": "[redacted]", "lr": 1}`},
		{`curl -H "Authorization: Bearer abcdef123456"`, `curl -H "Authorization: [redacted]"`},
		{"print the pad token now", "print the pad token now"},
		{"echo token budget: 4096", "echo token budget: 4096"},
	} {
		if got := RedactArgv([]string{"sh", "-c", c.in})[2]; got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// No secret of argv, environment or changes is in run.json, and the manifest in
// memory still has them for the next attempt.
func TestManifestIsRedactedOnDisk(t *testing.T) {
	t.Parallel()
	d := testDir(t)
	m := &Manifest{
		ID: d.ID, Argv: []string{"x", "--hf_token", "s3cret", "hf_0123456789abcdefghij"},
		Env:     map[string]string{"HF_TOKEN": "s3cret", "A": "1"},
		Pending: &Pending{Changes: []Change{{Layer: "config", Where: "c.yaml:hub_token", Before: "s3cret", After: "s3cret"}}},
		Attempts: []AttemptRecord{{N: 1, Changes: []Change{
			{Layer: "argv", Where: "--max_length", Before: "4096", After: "2048"},
			{Layer: "env", Where: "WANDB_API_KEY", Before: "", After: "s3cret"},
		}}},
		Result: "said hf_0123456789abcdefghij",
	}
	if err := d.Save(m); err != nil {
		t.Fatal(err)
	}
	data := string(read(t, d.File(ManifestFile)))
	for _, secret := range []string{"s3cret", "hf_0123456789abcdefghij"} {
		if strings.Contains(data, secret) {
			t.Errorf("%q is in run.json:\n%s", secret, data)
		}
	}
	if m.Argv[2] != "s3cret" || m.Env["HF_TOKEN"] != "s3cret" || m.Pending.Changes[0].After != "s3cret" {
		t.Error("the manifest in memory was redacted")
	}
	got, err := ReadManifest(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	if c := got.Attempts[0].Changes[0]; c.Before != "4096" || c.After != "2048" {
		t.Errorf("an ordinary change reads %+v", c)
	}
}

// Secrets in the middle of encoded text, behind escapes and colour codes.
func TestScrubFindsSecretsBehindEscapes(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"hf_abcdefghij0123456789", "sk-proj-0123456789abcdef", "ghp_0123456789abcdefABCD", "AKIAIOSFODNN7EXAMPLE"} {
		for _, before := range []string{"", " ", "\n", "\t", "\x1b[31m", "=", "\""} {
			data, err := json.Marshal(before + secret)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(scrub(data)); strings.Contains(got, secret[4:]) {
				t.Errorf("%s is still in %s", secret, got)
			}
		}
	}
}

func TestScrubKeepsJSONWhole(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		`https://a:b"c@d`, "bearer abcdefgh12345678\"", "-----BEGIN RSA PRIVATE KEY-----\nabc\n", `hf_abcdefghijklmnopqrst\`, "x://\\u:p@h",
	} {
		data, err := json.Marshal(map[string]string{"k": s, "z": "end"})
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]string
		if err := json.Unmarshal(scrub(data), &m); err != nil || m["z"] != "end" {
			t.Errorf("%q: %s: %v", s, scrub(data), err)
		}
	}
}

// The forms of secrets as three plain patterns over the whole text: what scrub
// does, said simply and slowly.
var (
	plainForms = regexp.MustCompile(strings.Join([]string{
		`hf_[A-Za-z0-9]{20,}`, `gh[pousr]_[A-Za-z0-9]{16,}`, `github_pat_[A-Za-z0-9_]{16,}`, `glpat-[A-Za-z0-9_-]{16,}`,
		`(?:AKIA|ASIA)[A-Z0-9]{16}`, `xox[abeoprs]-[A-Za-z0-9-]{10,}`, `nvapi-[A-Za-z0-9_-]{16,}`, `AIza[A-Za-z0-9_-]{35}`,
		`ya29\.[A-Za-z0-9_-]{20,}`, `dckr_pat_[A-Za-z0-9_-]{16,}`, `pypi-[A-Za-z0-9_-]{50,}`,
		`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}`,
		`(?i:\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`, `-----BEGIN [A-Z ]*PRIVATE KEY-----[^"]*`,
	}, "|"))
	plainSK   = regexp.MustCompile(`(^|[^A-Za-z0-9]|\\[bfnrt]|\[[0-9;]*m)(sk-[A-Za-z0-9_-]{16,})`)
	plainUser = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^/\s"'\\@?#]+@`)
)

func plainScrub(b []byte) []byte {
	b = plainForms.ReplaceAll(b, []byte(Redacted))
	b = plainSK.ReplaceAllFunc(b, func(m []byte) []byte {
		p := plainSK.FindSubmatch(m)
		if !bytes.ContainsAny(p[2], "0123456789") {
			return m
		}
		return append(bytes.Clone(p[1]), Redacted...)
	})
	return plainUser.ReplaceAll(b, []byte("${1}"+Redacted+"@"))
}

// TestScrubIsThePlainPatterns draws texts from the pieces that the patterns are
// made of, whole, cut and run into each other: scrub gives byte for byte what
// the patterns give.
func TestScrubIsThePlainPatterns(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"hf_", "ghp_", "gho_", "ghx_", "gh", "github_pat_", "glpat-", "AKIA", "ASIA", "xoxb-", "xoxz-", "nvapi-", "AIza", "ya29.",
		"dckr_pat_", "pypi-", "eyJ", "Bearer ", "bEaReR\t", "bearer", "-----BEGIN ", "RSA ", "PRIVATE KEY-----", "sk-", "task-", "sk-proj-",
		"https://", "a+b.c-d://", "9://", "://", "joe:pw@", "@", "/", "host", ":", ".", "_", "-", " ", "\n", `\n`, `\\`, `"`, "'", "\x1b[31m", "[0;1m", "m",
		"abcdefgh", "ABCDEFGH12345678", "abcdefABCDEF1234567890", "0123456789abcdef0123456789abcdef", "1", "é", "\xff", Redacted,
	}
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 24).Draw(t, "pieces"), ""))
		before := bytes.Clone(text)
		want, got := plainScrub(bytes.Clone(text)), scrub(text)
		if !bytes.Equal(got, want) {
			t.Fatalf("%q:\ngot  %q\nwant %q", text, got, want)
		}
		if !bytes.Equal(text, before) {
			t.Fatalf("the text itself was changed: %q -> %q", before, text)
		}
	})
}

// TestCheapQuestionNeverHidesASecret: whatever name is a secret's, the words that
// are looked for first find it.
func TestCheapQuestionNeverHidesASecret(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"secret", "secrets", "password", "passwd", "passphrase", "apikey", "credential", "credentials", "token", "key", "authtoken", "pat", "jwt",
		"sshpass", "pass", "auth", "dsn", "pwd", "cookie", "connection", "string", "api", "hf", "wandb", "access", "my", "file", "pad", "path", "keys", "monkey",
	}
	rapid.Check(t, func(t *rapid.T) {
		var name strings.Builder
		for i, p := range rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 4).Draw(t, "pieces") {
			if i > 0 {
				name.WriteString(rapid.SampledFrom([]string{"_", "-", ".", ""}).Draw(t, "joint"))
			}
			switch rapid.IntRange(0, 2).Draw(t, "case") {
			case 0:
				p = strings.ToUpper(p)
			case 1:
				p = strings.ToUpper(p[:1]) + p[1:]
			}
			name.WriteString(p)
		}
		n := name.String() + rapid.SampledFrom([]string{"", "_", "-"}).Draw(t, "end")
		for _, text := range []string{n + "=s3cret run", `{"` + n + `": "s3cret"}`, "run --" + n + " s3cret"} {
			if (secretFlag(n) || secretVariable(n) && !strings.HasPrefix(n, "-")) && !namesSecret(text) {
				t.Fatalf("%q is not looked at", text)
			}
		}
	})
}

// A night's run.json has the usual secrets of an environment in it, and none of
// them after it is encoded.
func TestUsualManifestHasNoSecret(t *testing.T) {
	t.Parallel()
	data, err := nightManifest("x").encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hf_abcdefghij0123456789", "0123456789abcdef0123456789", "ada:pw@"} {
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%s is in run.json", secret)
		}
	}
	if !bytes.Contains(data, []byte("| /usr/bin/lesspipe %s")) || !json.Valid(data) {
		t.Errorf("what is no secret was changed:\n%s", data)
	}
}

// The place of a change in a config file, a placeholder and a key=value word are
// all read for their name.
func TestRedactChangesByPlace(t *testing.T) {
	t.Parallel()
	for where, secret := range map[string]bool{
		"conf/c.yaml:7 hub_token": true, "conf/c.yaml hub_token": true, "c.json:3 api_key": true, "c.yaml:hub_token": true, "{hf_token}": true,
		"--hub_token": true, "WANDB_API_KEY": true, "trainer.api_key": true,
		"conf/api_key.yaml:3 max_length": false, "c.yaml:7 pad_token": false, "{seq_len}": false, "cutoff_len": false, "--max_length": false,
	} {
		got := redactChanges([]Change{{Layer: "x", Where: where, Before: "", After: "4096"}})[0]
		if (got.After == Redacted) != secret || got.Before != "" || got.Where != where {
			t.Errorf("%s: %+v", where, got)
		}
	}
}

func TestRedactConfig(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"# mine\nhub_token: s3cret   # keep\nmax_length: 4096\n": "# mine\nhub_token: [redacted]   # keep\nmax_length: 4096\n",
		"token:\n  next: 5\npad_token: <pad>\n":                  "token:\n  next: 5\npad_token: <pad>\n",
		"{\r\n  \"api_key\": \"s3cret\",\r\n  \"lr\": 1e-4\r\n}": "{\r\n  \"api_key\": \"[redacted]\",\r\n  \"lr\": 1e-4\r\n}",
		"HF_TOKEN=s3cret\nA=1":                                   "HF_TOKEN=[redacted]\nA=1",
		"push_to_hub_token: true\nreport: https://joe:pw@h/\n":   "push_to_hub_token: true\nreport: https://[redacted]@h/\n",
		"cert: |\n  -----BEGIN RSA PRIVATE KEY-----\n  abc\n":    "cert: |\n  [redacted]",
		"model: m\nkey: hf_abcdefghij0123456789":                 "model: m\nkey: [redacted]",
	} {
		if got := RedactConfig(in); got != want {
			t.Errorf("%q:\ngot  %q\nwant %q", in, got, want)
		}
		if got := RedactConfig(RedactConfig(in)); got != RedactConfig(in) {
			t.Errorf("%q: not the same when done twice: %q", in, got)
		}
	}
}
