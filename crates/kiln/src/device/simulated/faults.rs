//! Faults that a simulated device is told to have.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// What a device is asked to do, as far as faults tell operations apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Every operation below.
    Any,
    /// Opening an existing file.
    Open,
    /// Listing the directory.
    List,
    /// Asking for a file's size.
    Size,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Syncing a file.
    Sync,
    /// Allocating space for a file.
    Allocate,
    /// Truncating a file.
    Truncate,
    /// Creating a file.
    Create,
    /// Removing a file.
    Remove,
    /// Renaming a file.
    Rename,
    /// Syncing the directory.
    SyncDirectory,
}

impl OperationKind {
    /// Whether the operation changes anything, and therefore counts as a step.
    pub fn is_mutating(self) -> bool {
        !matches!(self, OperationKind::Any | OperationKind::Open | OperationKind::List)
            && !matches!(self, OperationKind::Size | OperationKind::Read)
    }
}

/// How an operation goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing happens, and the operation reports this error number of the operating system. What a failed
    /// sync should have made durable stays volatile, so that a second sync would succeed in it;
    /// [`FailedSyncThenSuccess`](FaultKind::FailedSyncThenSuccess) is what Linux does instead.
    Error(i32),
    /// A write stores some of its sectors, the first ones or any, possibly none or all, and reports
    /// [`WriteZero`](io::ErrorKind::WriteZero). A read returns fewer bytes than there are. Any other
    /// operation fails with an I/O error.
    ShortWrite,
    /// A sync fails with an I/O error and forgets the writes that it should have made durable: reads still
    /// see them, until they are [evicted](FaultKind::Evicted), later syncs succeed, yet a crash leaves only those
    /// sectors of them, chosen by the disk's seed, that had reached the disk when the sync failed. For the directory, the
    /// same with changes of names. Any other operation fails with an I/O error.
    FailedSyncThenSuccess,
    /// The same, and reads do not see them any more either, as on file systems that give up at once what they could not write. Any other operation
    /// fails with an I/O error.
    FailedSyncReverted,
    /// The operation reports success and does nothing: a lost write, or a disk that lies about a flush.
    /// Operations that return something (create, read, size and so on) fail with an I/O error.
    Ignored,
    /// A write lands at this offset of its file instead of the one asked for, and reports success. Any
    /// other operation fails with an I/O error.
    Misdirected(u64),
    /// A read goes right, and then the operating system gives up what it holds of the file and takes for clean, as it does when it wants the memory: later reads
    /// see what is durable, and what a sync would still make so; what a failed sync has forgotten is gone. Any other operation fails with an I/O
    /// error.
    Evicted,
    /// The operation takes this long, then goes right. Others may run meanwhile.
    Delay(Duration),
    /// Nothing happens, and the call panics, as a mistake in a device of one's own would, or one in the engine near by.
    Panic,
}

impl FaultKind {
    /// The disk reports an I/O error.
    pub const EIO: FaultKind = FaultKind::Error(Errno::IO.raw_os_error());
    /// The disk is full.
    pub const ENOSPC: FaultKind = FaultKind::Error(Errno::NOSPC.raw_os_error());
    /// A signal interrupted the call. [`FileDevice`](crate::device::FileDevice) never reports this, since
    /// it tries again; whoever meets it must treat it as any other failure.
    pub const EINTR: FaultKind = FaultKind::Error(Errno::INTR.raw_os_error());

    /// The error that an operation reports which this fault makes fail and do nothing.
    pub(super) fn error(self) -> io::Error {
        match self {
            FaultKind::Error(number) => io::Error::from_raw_os_error(number),
            _ => Errno::IO.into(),
        }
    }
}

/// A fault to come: what goes wrong, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The operations that count, and of which one goes wrong.
    pub operation: OperationKind,
    /// Which of them, counted from the injection on; the first is 1, and 0 never comes.
    pub nth: u64,
    /// How it goes wrong.
    pub kind: FaultKind,
    /// Whether all later ones go wrong too, until [`clear_faults`](super::SimulatedDevice::clear_faults).
    pub sticky: bool,
}

/// The faults of one device.
#[derive(Debug, Default)]
pub(super) struct Faults {
    armed: Vec<ArmedFault>,
    fired: u64,
}

#[derive(Debug)]
struct ArmedFault {
    fault: Fault,
    matched: u64,
}

impl Faults {
    pub(super) fn arm(&mut self, fault: Fault) {
        self.armed.push(ArmedFault { fault, matched: 0 });
    }

    pub(super) fn clear(&mut self) {
        self.armed.clear();
    }

    /// How many operations have gone wrong so far.
    pub(super) fn fired(&self) -> u64 {
        self.fired
    }

    /// Counts an operation; the fault that strikes it, if any. If several would, the one injected first does.
    pub(super) fn strike(&mut self, operation: OperationKind) -> Option<FaultKind> {
        let mut struck = None;
        self.armed.retain_mut(|armed| {
            if armed.fault.operation != OperationKind::Any && armed.fault.operation != operation {
                return true;
            }
            armed.matched += 1;
            let due = armed.matched == armed.fault.nth
                || (armed.fault.sticky && armed.fault.nth > 0 && armed.matched > armed.fault.nth);
            if due && struck.is_none() {
                struck = Some(armed.fault.kind);
            }
            !due || armed.fault.sticky
        });
        self.fired += u64::from(struck.is_some());
        struck
    }
}
