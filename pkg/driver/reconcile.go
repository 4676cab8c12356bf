package driver

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"tessera.dev/tessera/pkg/journal"
)

// confirmAfter is the time between the first sign that a claim is gone and the release of its devices. The kubelet
// unprepares such a claim by itself as soon as its containers are dead; this is for when it never does.
const confirmAfter = time.Minute

// staleClaims remembers which records had no claim at the last look.
type staleClaims struct {
	since map[string]time.Time
}

// reconcileLoop compares the journal with the API server at start, every ReconcileInterval, and once more after
// confirmAfter when it saw a record whose claim is gone.
func (d *Driver) reconcileLoop(ctx context.Context) {
	for {
		next := d.config.ReconcileInterval
		if d.reconcile(ctx, time.Now()) {
			next = min(next, confirmAfter)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// reconcile releases the records that no live claim owns. A record of this boot is released only when its claim has
// been gone for confirmAfter: its containers may still be ending. One of an earlier boot has no containers.
// It returns whether something waits for confirmation.
func (d *Driver) reconcile(ctx context.Context, now time.Time) (pending bool) {
	logger := klog.FromContext(ctx)
	if err := d.ledger.refresh(); err != nil {
		logger.Error(err, "Reconcile could not read the journal")
		return true
	}
	since := map[string]time.Time{}
	for _, record := range d.ledger.all() {
		ending, err := d.isEnding(ctx, record)
		if err != nil {
			logger.Error(err, "Reconcile could not look a claim up; its record stays")
			continue
		}
		if !ending {
			continue
		}
		first, seen := d.stale.since[record.UID]
		if !seen {
			first = now
		}
		if record.BootID == d.config.BootID && now.Sub(first) < confirmAfter {
			since[record.UID] = first
			continue
		}
		if err := d.releaseStale(ctx, record); err != nil {
			logger.Error(err, "Reconcile could not release a claim that is gone", "claim", recordRef(record))
			since[record.UID] = first
		}
	}
	d.stale.since = since
	d.metrics.prepared.Set(float64(d.ledger.len()))
	return len(since) > 0
}

func (d *Driver) releaseStale(ctx context.Context, record journal.Record) error {
	if err := d.unprepareClaim(ctx, record.UID); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Released the devices of a claim that is gone", "claim", recordRef(record), "bootID", record.BootID)
	d.metrics.reconciled.Inc()
	return nil
}
