package driver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"tessera.dev/tessera/pkg/journal"
)

// UnprepareResourceClaims gives the claims' GPUs back. It touches no hardware, so it succeeds on a lost GPU; a claim
// that is not in the journal is done already. Every claim has an entry in the result.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	leave, err := d.calls.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callBudget, errBudget)
	defer cancel()
	results := make(map[types.UID]error, len(claims))
	forEach(claims, func(claim kubeletplugin.NamespacedObject) error {
		ref := claimRef(claim.Namespace, claim.Name, string(claim.UID))
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", ref)
		done := d.metrics.observe("unprepare")
		err := d.unprepareClaim(ctx, string(claim.UID))
		done(err)
		if err != nil {
			logger.Error(err, "Unprepare failed")
			return fmt.Errorf("unprepare claim %s: %w", ref, err)
		}
		logger.V(2).Info("Unprepared")
		return nil
	}, func(claim kubeletplugin.NamespacedObject, err error) { results[claim.UID] = err })
	d.metrics.prepared.Set(float64(d.ledger.len()))
	return results, nil
}

func (d *Driver) unprepareClaim(ctx context.Context, uid string) error {
	release, err := d.claimLocks.acquire(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	// The other process of a rolling update may have prepared it.
	if err := d.ledger.refresh(); err != nil {
		return err
	}
	record, ok := d.ledger.get(uid)
	if !ok {
		return nil
	}
	return d.release(ctx, record)
}

// release ends a record under the locks of its GPUs.
func (d *Driver) release(ctx context.Context, record journal.Record) error {
	release, err := d.gpuLocks.acquire(ctx, recordGPUs(record)...)
	if err != nil {
		return err
	}
	defer release()
	return d.ledger.delete(record.UID)
}
