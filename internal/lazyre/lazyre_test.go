package lazyre

import "testing"

func TestLazily(t *testing.T) {
	good, bad := New(`^(\w+)=(\d+)$`), New(`(`)
	if good.re != nil || bad.re != nil {
		t.Error("compiled before anybody asked")
	}
	if m := good.FindStringSubmatch("steps=12"); len(m) != 3 || m[1] != "steps" || m[2] != "12" {
		t.Errorf("found %q", m)
	}
	if first := good.Regexp(); first != good.Regexp() || good.String() != first.String() {
		t.Error("not the same one twice")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a wrong one passes the check")
			}
		}()
		Check()
	}()
}
