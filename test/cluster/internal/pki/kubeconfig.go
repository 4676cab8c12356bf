package pki

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// Kubeconfig renders a kubeconfig that holds its credentials itself.
func Kubeconfig(server string, ca []byte, user string, p Pair) ([]byte, error) {
	b64 := base64.StdEncoding.EncodeToString
	type object = map[string]any
	data, err := yaml.Marshal(object{
		"apiVersion": "v1",
		"kind":       "Config",
		"clusters": []object{{"name": "tessera", "cluster": object{
			"server": server, "certificate-authority-data": b64(ca),
		}}},
		"users": []object{{"name": user, "user": object{
			"client-certificate-data": b64(p.Cert), "client-key-data": b64(p.Key),
		}}},
		"contexts":        []object{{"name": "tessera", "context": object{"cluster": "tessera", "user": user}}},
		"current-context": "tessera",
	})
	if err != nil {
		return nil, fmt.Errorf("render the kubeconfig of %s: %w", user, err)
	}
	return data, nil
}

// WriteKubeconfig renders a kubeconfig into a file that only its owner can read.
func WriteKubeconfig(file, server string, ca []byte, user string, p Pair) error {
	data, err := Kubeconfig(server, ca, user, p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", file, err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}

// ReadKubeconfig returns the credentials in a kubeconfig that WriteKubeconfig wrote.
func ReadKubeconfig(file string) (Pair, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Pair{}, fmt.Errorf("read a kubeconfig: %w", err)
	}
	var c struct {
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(data, &c); err != nil {
		return Pair{}, fmt.Errorf("read the kubeconfig %s: %w", file, err)
	}
	if len(c.Users) != 1 {
		return Pair{}, fmt.Errorf("the kubeconfig %s has %d users, one expected", file, len(c.Users))
	}
	return Pair{Cert: c.Users[0].User.Cert, Key: c.Users[0].User.Key}, nil
}
