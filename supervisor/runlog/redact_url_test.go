package runlog

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// webSecrets are the ways in which a command that tells others something holds a secret.
// Every VALUE must go and nothing else, by itself, quoted, in a script and in JSON.
var webSecrets = []struct{ in, want string }{
	// Parameters of URLs, wherever in it.
	{"https://x.example/y?token=abcd1234efgh", "https://x.example/y?token=[redacted]"},
	{"https://x.example/y?a=1&token=abcd1234efgh&b=2#top", "https://x.example/y?a=1&token=[redacted]&b=2#top"},
	{"http://x.example:8080/y?hf_token=abc&run=7", "http://x.example:8080/y?hf_token=[redacted]&run=7"},
	{"x.example/y?access_token=abc", "x.example/y?access_token=[redacted]"},
	{"https://x.example/#access_token=abc&state=1", "https://x.example/#access_token=[redacted]&state=1"},
	{"https://x.example/?apikey=abc&api_key=def&auth=Zm9v", "https://x.example/?apikey=[redacted]&api_key=[redacted]&auth=[redacted]"},
	{"https://b.example/o?X-Amz-Signature=0a1b&X-Amz-Expires=60", "https://b.example/o?X-Amz-Signature=[redacted]&X-Amz-Expires=60"},
	{"https://b.example/o?sv=2024-01-01&sig=a%2Fb%3D", "https://b.example/o?sv=2024-01-01&sig=[redacted]"},
	{"https://q.example/send?key=693a91f6-7b2c-4bc4-97a0-0ec2a1fa5aaa", "https://q.example/send?key=[redacted]"},
	{"https://f.example/api/run?code=aB3dE5fG7hI9jK==", "https://f.example/api/run?code=[redacted]"},
	{"https://u:p@x.example/y?password=pw", "https://[redacted]@x.example/y?password=[redacted]"},
	{"https://x.example/y?accesstoken=abc", "https://x.example/y?accesstoken=[redacted]"},
	// The paths of webhooks.
	{"https://hooks.slack.com/services/T00AB12CD/B00EF34GH/a1B2c3D4e5F6", "https://hooks.slack.com/services/[redacted]"},
	{"https://hooks.slack.com/services/T../B../..", "https://hooks.slack.com/services/[redacted]"},
	{"hooks.slack.com/workflows/T1/A2/333/abc", "hooks.slack.com/workflows/[redacted]"},
	{"https://api.telegram.org/bot123456:AAbbCC-dd_ee/sendMessage?chat_id=5", "https://api.telegram.org/bot[redacted]/sendMessage?chat_id=5"},
	{"https://api.telegram.org/bot1:x/getMe", "https://api.telegram.org/bot[redacted]/getMe"},
	{"https://tg.example/bot123456:AAbbCCddEEffGG/sendMessage", "https://tg.example/bot[redacted]/sendMessage"},
	{"https://discord.com/api/webhooks/123456789/a-B_c", "https://discord.com/api/webhooks/[redacted]"},
	{"https://ptb.discord.com/api/v10/webhooks/1/a?wait=true", "https://ptb.discord.com/api/v10/webhooks/[redacted]?wait=true"},
	{"https://chat.example/api/webhooks/12/abc", "https://chat.example/api/webhooks/[redacted]"},
	{"https://a.webhook.office.example/webhookb2/1@2/IncomingWebhook/3/4", "https://a.webhook.office.example/webhookb2/[redacted]"},
	{"https://webhook.site/0a1b", "https://webhook.site/[redacted]"},
	{"https://mm.example/hooks/xq7w3e9rt1yu8io2pa4s5dfgh6", "https://mm.example/hooks/[redacted]"},
	{"https://rc.example/hooks/catch/q7w3e9rt1yu8/k3", "https://rc.example/hooks/catch/[redacted]"},
	{"https://hooks.zapier.com/hooks/catch/12/ab", "https://hooks.zapier.com/hooks/[redacted]"},
	{"https://open.example/open-apis/bot/v2/hook/1f2e3d4c-aaaa-bbbb-cccc-000011112222", "https://open.example/open-apis/bot/v2/hook/[redacted]"},
	{"https://ntfy.sh/my-spark", "https://ntfy.sh/[redacted]"},
	{"https://hc-ping.com/1f2e3d4c-aaaa/fail", "https://hc-ping.com/[redacted]"},
	{"https://kuma.example/api/push/a1b2c3d4e5f6?status=up", "https://kuma.example/api/push/[redacted]?status=up"},
	{"https://maker.ifttt.example/trigger/spark/with/key/abc", "https://maker.ifttt.example/trigger/spark/with/key/[redacted]"},
	// Headers.
	{"X-Api-Key: abcd1234", "X-Api-Key: [redacted]"},
	{"X-Api-Key:abcd1234", "X-Api-Key:[redacted]"},
	{"-HX-Api-Key:abcd1234", "-HX-Api-Key:[redacted]"},
	{"X-Gotify-Key: abc", "X-Gotify-Key: [redacted]"},
	{"x-auth-token: abc", "x-auth-token: [redacted]"},
	{"PRIVATE-TOKEN: abc", "PRIVATE-TOKEN: [redacted]"},
	{"Access-Token:abc", "Access-Token:[redacted]"},
	{"Ocp-Apim-Subscription-Key: abc", "Ocp-Apim-Subscription-Key: [redacted]"},
	{"apikey: abc", "apikey: [redacted]"},
	{"Authorization: token abc", "Authorization: token [redacted]"},
	{"Authorization: GenieKey 1-2", "Authorization: GenieKey [redacted]"},
	{"Authorization: Bearer short", "Authorization: Bearer [redacted]"},
	{"authorization:abcd1234", "authorization:[redacted]"},
	{"Proxy-Authorization: Basic am9lOnB3MTIz", "Proxy-Authorization: [redacted]"},
	{"Cookie: session=abc; theme=dark", "Cookie: [redacted]"},
}

// plainWeb are those that only look so: what people need to see, and to type again.
var plainWeb = []string{
	"https://x.example/y?tokenizer=llama&max_tokens=5&token_count=5&seed=1&key=train&code=200&auth=true",
	"https://x.example/y?token=$TOKEN&b=2", "https://x.example/y?token=${HF_TOKEN}", "https://x.example/y?token={token}",
	"https://x.example/data/train.jsonl?rev=0a1b2c3d4e5f60718293a4b5c6d7e8f901234567&split=train_2024_01",
	"https://huggingface.example/meta/Llama-3.1-8B/resolve/main/tokenizer.json?download=true",
	"https://git.example/team/repo/blob/main/hooks/pre-commit", "https://git.example/team/git-hooks/x1", "/data/hooks/run12.sh",
	"https://docs.example/push/notifications", "https://x.example/ping", "https://x.example/robots/bot2/readme",
	"/data/bot/12:30", "https://git.example/binwiederhier/ntfy.sh/releases", "https://hooks.slack.com/services/$SLACK_PATH",
	"tokenizer=llama", "--token-count", "tokenizer:llama", "s3://bucket/key/model", "host.example:8080", "file:///data/a=b.txt",
	"Title: it is over", "Content-Type: application/json", "X-Priority: 5", "Authorization: Bearer $TOKEN", "X-Api-Key: $KEY", "X-Api-Key:${KEY}",
	"Authorization: see the manual", "an oatmeal cookie: good", "fix-key", "lr=1e-4", "a&b=c", "train#2=x",
	"trainer.args={a:1,b:{c:2}}", "image=registry.example/team/model:latest",
}

func TestRedactWeb(t *testing.T) {
	t.Parallel()
	cases := webSecrets
	for _, s := range plainWeb {
		cases = append(cases, struct{ in, want string }{s, s})
	}
	for _, c := range cases {
		forms := map[string][2]string{"alone": {c.in, c.want}}
		for name, frame := range map[string]string{
			"single quotes": "curl -d hello 'TEXT'", "double quotes": `curl "TEXT" && echo done`, "JSON": `{"url": "TEXT", "n": 1}`,
			"a flag": "--on-event=curl -sS 'TEXT'", "after colons": "env A:b=c curl 'TEXT' > /tmp/log",
		} {
			forms[name] = [2]string{strings.Replace(frame, "TEXT", c.in, 1), strings.Replace(frame, "TEXT", c.want, 1)}
		}
		if !strings.Contains(c.in, " ") {
			forms["bare"] = [2]string{"curl -d x=y " + c.in + " && echo done", "curl -d x=y " + c.want + " && echo done"}
			forms["a value"] = [2]string{"--url=" + c.in, "--url=" + c.want}
		}
		for name, f := range forms {
			if d := cmp.Diff(f[1], RedactArgv([]string{"--on-event", f[0]})[1]); d != "" {
				t.Errorf("%s, %s:\n%s", c.in, name, d)
			}
			if got := RedactArgv([]string{f[1]})[0]; got != f[1] {
				t.Errorf("%s, %s: not the same when done twice: %s", c.in, name, got)
			}
			if got := Redact([]string{"SPARKRUN_ON_EVENT=" + f[0]})["SPARKRUN_ON_EVENT"]; got != f[1] {
				t.Errorf("%s, %s: in the environment: %s", c.in, name, got)
			}
		}
		// Text has no names of its own, and JSON must stay whole.
		if got := RedactText("see " + c.in); got != "see "+c.want {
			t.Errorf("RedactText: %s", got)
		}
		b, err := encodeJSON(map[string]string{"msg": "said\n" + c.in, "z": "end"}, "")
		if err != nil {
			t.Fatal(err)
		}
		var back map[string]string
		if err := json.Unmarshal((*Redactor)(nil).JSON(b), &back); err != nil || back["msg"] != "said\n"+c.want || back["z"] != "end" {
			t.Errorf("%s: in JSON: %v, %v", c.in, back, err)
		}
	}
}

// An assignment inside the value of another is found, at any depth that a command has, and a
// long one costs no night.
func TestRedactNestedAssignments(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"run --header=X:api_key=abc now":                              "run --header=X:api_key=[redacted] now",
		"x: a=b=token=abc y":                                          "x: a=b=token=[redacted] y",
		`curl -d "{\"api_key\":\"abc\",\"n\":1}"`:                     `curl -d "{\"api_key\":\"[redacted]\",\"n\":1}"`,
		`{"a":{"token":"abc","tokenizer":"t"}}`:                       `{"a":{"token":"[redacted]","tokenizer":"t"}}`,
		"export HF_TOKEN=$OTHER_TOKEN; run --hub_token ${HF_TOKEN} x": "export HF_TOKEN=$OTHER_TOKEN; run --hub_token ${HF_TOKEN} x",
		"run --hub_token $ecret x":                                    "run --hub_token [redacted] x",
	} {
		if got := RedactArgv([]string{"sh", "-c", in})[2]; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	long := "token " + strings.Repeat("a=", 200_000)
	if got := RedactArgv([]string{long})[0]; got != long {
		t.Error("a long word was changed")
	}
}

// Whatever the pieces are run into: done twice it is the same, the text itself is left
// alone, and encoded JSON stays JSON.
func TestScrubWebKeepsJSONWhole(t *testing.T) {
	t.Parallel()
	pieces := []string{
		"https://", "hooks.slack.com/services/", "discord.com/api/webhooks/", "api.telegram.org/bot", "/bot", "123456:", "ntfy.sh/", "x.example/", "/hooks/", "/webhook/",
		"a1b2c3d4e5f6", "?", "&", "#", "=", "token=", "sig=", "key=", "abc", "X-Api-Key:", "Authorization:", "Bearer ", "token ", "Cookie: ", " ", "\n", "\\", `"`, "'", "`",
		"$", "{", "}", "[", "]", ",", ";", Redacted, "é", "\xff", "<", "(", ":", "/",
	}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 20).Draw(t, "pieces"), "")
		b, err := encodeJSON([]string{text, "end"}, "")
		if err != nil {
			t.Fatal(err)
		}
		before := string(b)
		got := scrubWeb(b)
		if string(b) != before {
			t.Fatalf("the text itself was changed: %q", before)
		}
		var back []string
		if err := json.Unmarshal(got, &back); err != nil || len(back) != 2 || back[1] != "end" {
			t.Fatalf("%s -> %s: %v", before, got, err)
		}
		if again := scrubWeb(got); string(again) != string(got) {
			t.Fatalf("not the same when done twice:\n%s\n%s\n%s", before, got, again)
		}
	})
}
