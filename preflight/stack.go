package preflight

import (
	"fmt"
	"sync"

	"sparkrun/configs"
)

// stack is configs/stack.yaml: what the platform needs from the software on it.
type stack struct {
	AsOf  string `yaml:"as_of"`
	Spark struct {
		GPUName    string `yaml:"gpu_name"`
		PCIDevice  string `yaml:"pci_device"`
		Machine    string `yaml:"machine"`
		CUDAMajor  int    `yaml:"cuda_major"`
		Capability [2]int `yaml:"capability"`
		WheelIndex string `yaml:"wheel_index"`
		Image      string `yaml:"image"`
	} `yaml:"spark"`
	Packages []string `yaml:"packages"`
}

// loadStack reads the built-in table once. It cannot fail in a binary whose
// tests passed; a caller that sees the error has a broken build.
var loadStack = sync.OnceValues(func() (stack, error) {
	var s stack
	if err := configs.BuiltIn("stack.yaml", &s); err != nil {
		return stack{}, fmt.Errorf("reading the built-in stack table: %w", err)
	}
	return s, nil
})
