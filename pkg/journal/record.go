package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
)

// State says how far a claim has come.
type State string

const (
	// StateIntent is written before the hardware is changed. A record in this state may own things that must be undone.
	StateIntent State = "intent"
	// StatePrepared is written when containers may start.
	StatePrepared State = "prepared"
)

// Record is what the plugin promised to one ResourceClaim.
type Record struct {
	// Namespace, Name and UID identify the claim. The UID also names the file.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	State     State  `json:"state"`
	// BootID is the boot in which the record was written (/proc/sys/kernel/random/boot_id).
	BootID  string   `json:"bootID"`
	Devices []Device `json:"devices"`
}

// Device is one allocated device of the claim, as in the claim's allocation results.
type Device struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// GPUUUID is the physical GPU behind the device.
	GPUUUID string `json:"gpuUUID"`
	// Admin is set for admin access, which takes the GPU from nobody.
	Admin   bool   `json:"admin,omitempty"`
	ShareID string `json:"shareID,omitempty"`
	// CDIDeviceIDs is what the kubelet was told, for example "gpu.tessera.dev/gpu=GPU-…".
	CDIDeviceIDs []string `json:"cdiDeviceIDs"`
}

const (
	// version is the format that this code writes.
	version = 1
	// A reader understands every file whose minReader is not above its own version. A later format that only adds
	// fields keeps minReader, and a downgraded plugin still reads it.
	minReader = 1
)

// envelope is the file's content. Payload is kept as it was written, so that the checksum covers unknown fields too.
type envelope struct {
	Version   int             `json:"version"`
	MinReader int             `json:"minReader"`
	CRC32C    string          `json:"crc32c"`
	Record    json.RawMessage `json:"record"`
}

func checksum(payload []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
}

// encode returns the file's bytes; equal records give equal bytes.
func encode(record Record) ([]byte, error) {
	if err := validate(record); err != nil {
		return nil, err
	}
	payload, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("encode the record of claim %s: %w", record.UID, err)
	}
	data, err := json.Marshal(envelope{Version: version, MinReader: minReader, CRC32C: checksum(payload), Record: payload})
	if err != nil {
		return nil, fmt.Errorf("encode the record of claim %s: %w", record.UID, err)
	}
	return append(data, '\n'), nil
}

// decode reads a file's bytes, written by this version or by a newer one that is compatible.
func decode(data []byte) (Record, error) {
	if !bytes.HasSuffix(data, []byte("\n")) {
		return Record{}, errors.New("the record is truncated")
	}
	var outer envelope
	if err := json.Unmarshal(data, &outer); err != nil {
		return Record{}, fmt.Errorf("the record is not valid JSON: %w", err)
	}
	if outer.Version < 1 || outer.MinReader < 1 {
		return Record{}, errors.New("the record has no version")
	}
	if outer.MinReader > version {
		return Record{}, fmt.Errorf("the record has format %d and needs a reader of format %d, this plugin reads up to %d: upgrade the plugin",
			outer.Version, outer.MinReader, version)
	}
	if sum := checksum(outer.Record); sum != outer.CRC32C {
		return Record{}, fmt.Errorf("the record's checksum is %s, its file says %q", sum, outer.CRC32C)
	}
	var record Record
	if err := json.Unmarshal(outer.Record, &record); err != nil {
		return Record{}, fmt.Errorf("the record's content is not valid: %w", err)
	}
	return record, validate(record)
}

// validUID is what the API server makes, with room for other forms that are safe as a file name.
var validUID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,62}$`)

func validateUID(uid string) error {
	if !validUID.MatchString(uid) {
		return fmt.Errorf("claim UID %q: want up to 63 letters, digits and dashes", uid)
	}
	return nil
}

func validate(record Record) error {
	if err := validateUID(record.UID); err != nil {
		return err
	}
	if record.Namespace == "" || record.Name == "" {
		return fmt.Errorf("the record of claim %s has no namespace or no name", record.UID)
	}
	if record.State != StateIntent && record.State != StatePrepared {
		return fmt.Errorf("the record of claim %s has the unknown state %q", record.UID, record.State)
	}
	return nil
}
