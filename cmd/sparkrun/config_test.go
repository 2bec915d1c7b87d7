package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigShowsNoSecret: `sparkrun config` shows what --on-event is without what gives
// access by it, whether it comes from a file or the environment, and for programs too; the
// file stays as it is.
func TestConfigShowsNoSecret(t *testing.T) {
	for name, c := range map[string]struct{ command, want string }{
		"bearer":     {`curl -H "Authorization: Bearer s3cretS3cret1" https://x.example/y`, `curl -H "Authorization: [redacted]" https://x.example/y`},
		"user":       {"curl https://joe:s3cretS3cret1@x.example/y", "curl https://[redacted]@x.example/y"},
		"curl's":     {"curl -u joe:s3cretS3cret1 https://x.example", "curl -u joe:[redacted] https://x.example"},
		"parameter":  {"curl https://x.example/y?token=s3cretS3cret1", "curl https://x.example/y?token=[redacted]"},
		"webhook":    {"curl -d hi https://hooks.slack.com/services/T0/B0/s3cretS3cret1", "curl -d hi https://hooks.slack.com/services/[redacted]"},
		"header":     {"curl -H 'X-Api-Key: s3cretS3cret1' https://x.example", "curl -H 'X-Api-Key: [redacted]' https://x.example"},
		"assignment": {"HOOK_TOKEN=s3cretS3cret1 /opt/tell", "HOOK_TOKEN=[redacted] /opt/tell"},
		"flag":       {"tell --token s3cretS3cret1", "tell --token [redacted]"},
		"by value":   {"tell d1sk0rdSECRET", "tell [redacted]"},
		"none":       {`curl -H "Authorization: Bearer $TOKEN" https://x.example/y?a=1 >>/var/tmp/told.log`, `curl -H "Authorization: Bearer $TOKEN" https://x.example/y?a=1 >>/var/tmp/told.log`},
	} {
		for _, from := range []string{"file", "environment"} {
			dir := t.TempDir()
			t.Chdir(dir)
			env := map[string]string{"XDG_CONFIG_HOME": dir, "MY_TOKEN": "d1sk0rdSECRET"}
			var file, source string
			if from == "file" {
				quoted, err := json.Marshal(c.command)
				if err != nil {
					t.Fatal(err)
				}
				source, file = filepath.Join(dir, settingsFile), "on-event: "+string(quoted)+"\nruns-dir: /data/token/runs\n"
				write(t, source, file)
			} else {
				source, env["SPARKRUN_ON_EVENT"] = "SPARKRUN_ON_EVENT", c.command
			}
			for _, args := range [][]string{{"config"}, {"config", "--json"}} {
				out := filepath.Join(dir, "out")
				got := configOutput(t, out, env, args)
				if strings.Contains(got, "s3cret") || strings.Contains(got, "d1sk0rd") {
					t.Errorf("%s, %s, %q: a secret is shown:\n%s", name, from, args, got)
				}
				if len(args) == 2 {
					var rows []map[string]string
					if err := json.Unmarshal([]byte(got), &rows); err != nil {
						t.Fatal(err)
					}
					got = ""
					for _, r := range rows {
						got += r["name"] + "  " + r["value"] + "  " + r["from"] + "\n"
					}
				}
				if line := "on-event  " + c.want + "  " + source; !strings.Contains(strings.Join(strings.Fields(got), " "), strings.Join(strings.Fields(line), " ")) {
					t.Errorf("%s, %s, %q: want %q in:\n%s", name, from, args, line, got)
				}
				if from == "file" && !strings.Contains(got, "/data/token/runs") {
					t.Errorf("%s: a path is gone:\n%s", name, got)
				}
			}
			if file != "" {
				if b, err := os.ReadFile(source); err != nil || string(b) != file {
					t.Errorf("%s: the file is %q now (%v)", name, b, err)
				}
			}
		}
	}
}

func configOutput(t *testing.T, path string, env map[string]string, args []string) string {
	t.Helper()
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	e := environment{stdin: out, stdout: out, stderr: out, getenv: func(n string) string { return env[n] }}
	for n, v := range env {
		e.env = append(e.env, n+"="+v)
	}
	if status := run(args, e); status != 0 {
		t.Errorf("%q: status %d", args, status)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
