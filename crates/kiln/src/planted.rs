//! Planted bugs: mistakes made on purpose, here and in the server, so that it can be measured whether the proof notices them.
//!
//! Only a build with the feature `planted-bugs` contains them, and there none is active until `plant` is called. In every
//! other build [`planted`] is the constant `false`, and nothing of them is left. A bug is a name here and a place in the code
//! that asks for it.

macro_rules! bugs {
    ($($bug:ident $name:literal $what:literal $(in $place:ident)?,)*) => {
        /// A mistake that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        #[cfg(feature = "planted-bugs")]
        impl std::str::FromStr for Bug {
            type Err = String;

            fn from_str(name: &str) -> Result<Bug, String> {
                Bug::ALL.iter().copied().find(|bug| bug.name() == name).ok_or_else(|| {
                    let names: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
                    format!("no bug has this name; there are {}", names.join(", "))
                })
            }
        }

        #[cfg(feature = "planted-bugs")]
        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)*];

            /// Its name on command lines.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name,)* }
            }

            /// What is wrong then.
            pub fn what(self) -> &'static str {
                match self { $(Bug::$bug => $what,)* }
            }

            /// Where alone it shows, if that is not the usual build of the engine: in that for `schedules` (a feature), if it takes a
            /// certain interleaving; in `loom` (a program), if it takes weakly ordered memory; in the `server`, if only who looks at that is to notice it, though the engine may make it, too.
            pub fn place(self) -> Option<&'static str> {
                match self { $(Bug::$bug => bugs!(@in $($place)?),)* }
            }
        }
    };
    (@in $place:ident) => { Some(stringify!($place)) };
    (@in) => { None };
}

bugs! {
    SyncSkipped "sync-skipped" "An extent is not synced.",
    SyncErrorIgnored "sync-error-ignored" "A failed sync of an extent passes for a success.",
    WriteErrorIgnored "write-error-ignored" "A failed write of an extent passes for a success.",
    TornWriteIgnored "torn-write-ignored" "A write of an extent that stores only its beginning passes for a success.",
    FailedSealCovers "failed-seal-covers" "The horizon advances although the write of the seal has failed.",
    HorizonBeforeWrite "horizon-before-write" "The horizon is published before the extent is written.",
    HorizonOffByOne "horizon-off-by-one" "A version counts as durable when the one before it is.",
    EarlySealNewVersion "early-seal-new-version" "The first extent of a hardening over two segments already seals the version.",
    FailureForgotten "failure-forgotten" "After a failed hardening the next one goes on.",
    LostNotTold "lost-not-told" "The callbacks for lost commits are not called.",
    WaitReturnsEarly "wait-returns-early" "Waiting for a receipt returns at once.",
    PersistDoesNothing "persist-does-nothing" "persist() returns without hardening.",
    SafeReadDoesNotWait "safe-read-does-not-wait" "A safe read returns before what it read is durable.",
    DirectorySyncSkipped "directory-sync-skipped" "The directory is not synced when a segment gets its name.",
    DirectorySyncErrorForgotten "directory-sync-error-forgotten" "After a failed sync of the directory segments are named as before.",
    SegmentSyncSkipped "segment-sync-skipped" "A prepared segment gets its name before its bytes are durable.",
    SpareNotZeroed "spare-not-zeroed" "A segment that is used again keeps its old bytes.",
    TailNotCut "tail-not-cut" "The unfinished end of the log is not zeroed when the database is opened.",
    LastExtentNotRewritten "last-extent-not-rewritten" "What a failed sync may have forgotten is believed when the database is opened.",
    TornExtentAccepted "torn-extent-accepted" "An extent's checksum is not compared.",
    SealChecksumIgnored "seal-checksum-ignored" "A seal's checksum is not compared.",
    TornEndBelowKnownEnd "torn-end-below-known-end" "The log may end before the place that the superblock knows to be durable.",
    LaterSealsIgnored "later-seals-ignored" "Extents behind the end of the log are not looked for.",
    ShortSegmentAccepted "short-segment-accepted" "A segment that is cut short is opened.",
    PendingKept "pending-kept" "Records that a crash took come back when later versions are sealed.",
    UnsealedApplied "unsealed-applied" "Recovery applies records whose version was never sealed.",
    VersionsReused "versions-reused" "After a crash the clock goes on where the log ends.",
    LossesNotRecorded "losses-not-recorded" "What a crash took is only told by a seal.",
    LossOffByOne "loss-off-by-one" "The first version that a crash took counts as durable.",
    CleanTooEarly "clean-too-early" "The superblock says closed in order before the last commits are hardened.",
    CleanNotCleared "clean-not-cleared" "The superblock still says closed in order while the database is open.",
    SuperblockNotSynced "superblock-not-synced" "The superblock is not synced before segments are dropped.",
    TruncatesLiveRecords "truncates-live-records" "Segments are dropped although newest records are in them.",
    TruncatesUnderSnapshots "truncates-under-snapshots" "Segments are dropped although a snapshot needs them.",
    CompactsSuperseded "compacts-superseded" "Compaction writes a record anew although its key has a newer one.",
    CompactionLosesPrevious "compaction-loses-previous" "A record that compaction writes anew does not point to the one before it.",
    PiecesBackwards "pieces-backwards" "Threads that recover apply the pieces of a stretch from the last to the first.",
    PartsMixed "parts-mixed" "Threads that recover share the records of one key.",
    SupersededTwice "superseded-twice" "A record that is superseded counts as two.",
    SettlesOldest "settles-oldest" "Of several records of a key the oldest settles.",
    SettlesLost "settles-lost" "What a crash took settles.",
    SettlesTooNew "settles-too-new" "What a snapshot must not see yet settles.",
    SettlesNotWhatIsReplaced "settles-not-what-is-replaced" "A row does not settle although what replaces it is not durable yet.",
    FreezesTooNew "freezes-too-new" "A long scan takes what is newer than its snapshot out of the log.",
    FreezesDeletedRows "freezes-deleted-rows" "A long scan overlooks deletions in the log of what has settled.",
    WalkTakesSuperseded "walk-takes-superseded" "A walk over a map takes what newer records have superseded out of the log.",
    WalkOverlooksChanges "walk-overlooks-changes" "A walk over a map takes what was written since its snapshot for what that sees.",
    SettlesNotTheLastRun "settles-not-the-last-run" "What is still in memory behind the last sorted run counts as settled.",
    SettledBeforeTheLastRange "settled-before-the-last-range" "The first of several ranges of keys that settle already says that all have.",
    RootNotOfLeaf "root-not-of-leaf" "A walk does not look whether the tree has changed while it read a leaf." in schedules,
    StaleTreeAccepted "stale-tree-accepted" "A tree is accepted that is older than the superblock says.",
    FoundRootBelieved "found-root-believed" "The tree's root that is found at opening passes for durable.",
    SettledToBeforeRoot "settled-to-before-root" "The superblock says what the tree's root that is found at opening has before that is durable.",
    LeavingMissed "leaving-missed" "What leaves memory just while a snapshot looks for it passes for another key's." in schedules,
    RemovedBeforeSuperblock "removed-before-superblock" "The superblock does not say how far the tables have settled.",
    SettlesQuietly "settles-quietly" "Nobody who reads is told that rows settle.",
    RemovedBeforeRoot "removed-before-root" "Rows leave the index before they are in the tree.",
    TreeNotSynced "tree-not-synced" "The tree has a new root before what it refers to is durable.",
    TreeNameNotSynced "tree-name-not-synced" "The tree's file is used before its name is durable.",
    BlocksUsedAtOnce "blocks-used-at-once" "What the next root of the tree does not need is overwritten before that one is durable.",
    BlocksUsedUnderReaders "blocks-used-under-readers" "Blocks of a root of the tree that somebody holds are used again.",
    EmptyMapPageKept "empty-map-page-kept" "A page of the tree's map of free space that is empty in the end keeps the block that it was given.",
    NodeChecksumIgnored "node-checksum-ignored" "The checksum of a node of the tree is not compared.",
    SettledCountedTwice "settled-counted-twice" "A row that was written since it settled counts twice.",
    TombstonesNotRecovered "tombstones-not-recovered" "Recovery takes a row that was deleted since it settled for settled.",
    TreeAskedEarly "tree-asked-early" "A delete asks the tree for its row before it knows whether the log has it, and goes by that though the tree is a newer one." in schedules,
    OrderNotAsked "order-not-asked" "A put takes a key for new because its record is on disk.",
    TombstonesOfEmptiedTree "tombstones-of-emptied-tree" "Opening keeps no deletions where nothing is left of what has settled.",
    TombstonesForgottenEarly "tombstones-forgotten-early" "A deleted key is forgotten although it has settled with a value.",
    CheckpointForgets "checkpoint-forgets" "A checkpoint does not say that deletions were forgotten which have not settled.",
    ForgetsUnderSnapshots "forgets-under-snapshots" "A deleted key is forgotten although a snapshot still sees it.",
    UpdatesClosedVersions "updates-closed-versions" "A record of a closed version is updated in place.",
    PreviousAddressLost "previous-address-lost" "A record does not point to the one before it.",
    StaleIndexEntry "stale-index-entry" "The index keeps pointing to the older record.",
    KeyCountForgotten "key-count-forgotten" "A deletion is not counted.",
    SerialOffByOne "serial-off-by-one" "A session stores the serial number before its own.",
    SerialInNextTransaction "serial-in-next-transaction" "A session's serial number commits after its operation.",
    BeginsAnewEarly "begins-anew-early" "A session that was forgotten begins anew before it is durable that it was.",
    ForgottenSessionTold "forgotten-session-told" "A checkpoint tells of sessions that were forgotten.",
    DurableSnapshotTooNew "durable-snapshot-too-new" "A durable read sees what is not durable yet.",
    ClosedNotHeld "closed-not-held" "A version that was closed for a snapshot is swept before it is held." in schedules,
    NextSnapshotsTail "next-snapshots-tail" "Whoever opens a snapshot takes the log's end that belongs to the next version for that of the one before." in schedules,
    SnapshotNotClosed "snapshot-not-closed" "A snapshot's version is still being written.",
    PartOfCommit "part-of-commit" "The last write of a transaction of several is left out.",
    ReadsNotValidated "reads-not-validated" "A commit does not look whether the keys that it read have changed.",
    RangesNotValidated "ranges-not-validated" "A commit does not look whether the ranges that it read have changed.",
    ValidatesBeforeLocking "validates-before-locking" "A commit looks at what it read before it has locked what it writes.",
    ClockBeforeLocks "clock-before-locks" "A commit reads the clock before it has locked what it writes.",
    LocksOverlooked "locks-overlooked" "A key that another commit holds passes for unchanged.",
    AdmitsAfterValidation "admits-after-validation" "New keys enter the ordered index only when the ranges have been looked at.",
    InsertionHidesOthers "insertion-hides-others" "A transaction that inserts into a range takes those of others for its own.",
    StampNotChanged "stamp-not-changed" "A commit unlocks its keys as if it had not changed them.",
    ReadNotRepeated "read-not-repeated" "What was being changed while it was read is believed.",
    OpacityForgotten "opacity-forgotten" "A transaction does not look again at what it has read before.",
    OpacityOffByOne "opacity-off-by-one" "What was written in the version in which a transaction began passes for older.",
    ForgottenTooQuietly "forgotten-too-quietly" "A deleted key vanishes as if it had never been there.",
    SnapshotsForgetDeleted "snapshots-forget-deleted" "Recovery forgets deleted keys although a snapshot that has a name still sees them.",
    NamesNotHeld "names-not-held" "After a restart nothing holds what a snapshot that has a name needs.",
    DroppedTooEarly "dropped-too-early" "What a snapshot holds may go before it is durable that the snapshot was dropped.",
    NamedBeforeClosed "named-before-closed" "A snapshot gets a name of a version that is not closed.",
    SnapshotReadsNewest "snapshot-reads-newest" "Under snapshot isolation the newest value is read.",
    FirstCommitterIgnored "first-committer-ignored" "Under snapshot isolation the last committer wins.",
    CopiesUnfinished "copies-unfinished" "The end of the log is copied out while commits still write it." in schedules,
    WatchNotKept "watch-not-kept" "A watched key may change between its check and the commit.",
    ClosesWithoutWaiting "closes-without-waiting" "A version closes while commits that join it are still at work." in schedules,
    SuccessorNotWoken "successor-not-woken" "Who has hardened does not wake those that it was too late for." in schedules,
    LeadLetGoQuietly "lead-let-go-quietly" "Who held the lead without hardening wakes nobody that found it taken." in schedules,
    ParksWithoutLooking "parks-without-looking" "A waiter sleeps without looking again whether somebody leads." in schedules,
    RegistersUnseen "registers-unseen" "A waiter is registered although its version has just become durable." in schedules,
    SleepsWithoutLooking "sleeps-without-looking" "The background threads fall asleep without looking once more for a commit." in schedules,
    TurnsWithTheLock "turns-with-the-lock" "The hardener turns, with its lock, while somebody else hardens." in schedules,
    EvictsUnderReaders "evicts-under-readers" "Log memory is used again while somebody may still read it." in schedules,
    QuiesceOverlooks "quiesce-overlooks" "Waiting for all pins leaves out every second thread." in schedules,
    InnerUnpinEnds "inner-unpin-ends" "The end of an inner pin ends the outer one, too." in schedules,
    UnlocksBeforeInstalling "unlocks-before-installing" "A commit unlocks its keys before it has written them." in schedules,
    SplitShownLate "split-shown-late" "A bucket that was split is unlocked before others can know of the split." in schedules,
    ReadOnlyIgnored "read-only-ignored" "A record is updated in place while the hardener copies it out." in schedules,
    CloseOvertakesCommits "close-overtakes-commits" "Closing does not wait for commits that have begun." in schedules,
    HorizonBeforeFailure "horizon-before-failure" "What has just become durable passes for lost if the next hardening fails." in schedules,
    ChunksUnordered "chunks-unordered" "A record may lie before the one that it replaces." in schedules,
    ChunksOutliveShift "chunks-outlive-shift" "A thread uses the log space that it took ahead although the log there is read-only." in schedules,
    RestsLeft "rests-left" "What a thread leaves of the log space that it took ahead is hardened as whatever was in that memory." in schedules,
    TailTakenTwice "tail-taken-twice" "Two commits may get the same log space." in schedules,
    CachedNotValidated "cached-not-validated" "What the read cache gave up while it was being copied is believed." in schedules,
    SingleNotValidated "single-not-validated" "A read-modify-write of one key does not look whether it has changed meanwhile." in schedules,
    SnapshotUsedAgain "snapshot-used-again" "A snapshot reads at the version of the one before, whatever was committed since.",
    SnapshotsOvertakeCommits "snapshots-overtake-commits" "A snapshot takes commits in progress for some of the version before." in schedules,
    ImageWithoutQuiescence "image-without-quiescence" "A leaf's rows are copied while somebody who is superseding one may not have seen that." in schedules,
    ImageNotForgotten "image-not-forgotten" "Who supersedes a record does not take the image away that has a copy of it." in schedules,
    OverwrittenImageCopied "overwritten-image-copied" "Who copies an image copies as much as it says, whatever it is by now." in schedules,
    CopyingEnds "copying-ends" "Without background threads no leaf is copied any more once one was left to whoever asks next." in schedules,
    ImageOfChangingLeaf "image-of-changing-leaf" "A range believes what it has found out about a leaf's positions while the leaf was changed, if it has an image." in schedules,
    HintsBelieved "hints-believed" "A range of a snapshot does not look whether a record that was its key's newest still is.",
    MovedNotNoted "moved-not-noted" "In a record that is written anew nothing is noted, so that it passes for its key's newest for ever.",
    SettledNotNoted "settled-not-noted" "The same of a record whose row has settled.",
    VacancyKept "vacancy-kept" "An index in memory out of which all has settled passes for empty although keys have come.",
    GapKept "gap-kept" "A stretch in which all rows are gone is believed to be so after a row was put there.",
    LeafAheadBelieved "leaf-ahead-believed" "What a range has read ahead of the index is believed although it has changed." in schedules,
    UnpinOrdersNothing "unpin-orders-nothing" "What was done under a pin may show only after its end." in loom,
    ValidationOrdersNothing "validation-orders-nothing" "What was read of a record in memory may be newer than the look that finds its bucket unchanged." in loom,
    PinOrdersNothing "pin-orders-nothing" "What is done under a pin may happen before it." in loom,
    CheckpointNotSynced "checkpoint-not-synced" "The superblock names a checkpoint whose bytes are not durable.",
    CheckpointTooNew "checkpoint-too-new" "A checkpoint has entries of records behind its end.",
    CheckpointBeforeTruncation "checkpoint-before-truncation" "A checkpoint is used although the log begins behind its end.",
    ReadAheadMisplaced "read-ahead-misplaced" "What was read ahead is kept as what another read in flight is for.",
    ReadAheadUnchecked "read-ahead-unchecked" "The checksum of what was read ahead is not compared.",
    LoadVisibleEarly "load-visible-early" "A table that is loaded in bulk is there before its rows are.",
    LoadNotRemoved "load-not-removed" "The rows of a bulk load that a crash, or its caller, has broken off stay.",
    FrameUnchecked "frame-unchecked" "The checksum of what a backup's stream has for a file is not compared.",
    RestoreNotSynced "restore-not-synced" "A restore is finished before its files are durable.",
    RewrittenForEver "rewritten-for-ever" "A settled row that expires stays for ever once a compaction has written it anew.",
    ExpiredInRanges "expired-in-ranges" "A settled row that has expired is met by ranges.",
    DropOverlooked "drop-overlooked" "Who has a handle of a dropped object reads and writes it as before.",
    DropLookedForEarly "drop-looked-for-early" "Who writes a row looks whether its object was dropped before they read the clock." in schedules,
    DroppedForgotten "dropped-forgotten" "Rows of an object that was dropped stay for ever once the database is opened again.",
    DroppedRowsGoEarly "dropped-rows-go-early" "The rows of a dropped object go although a snapshot sees them.",
    ExpiresEarly "expires-early" "Rows are deleted, and not compacted, although they are yet to expire.",
    ExpirySettlesNot "expiry-settles-not" "A row that expires stays for ever once it has settled.",
    InfoEntersAgain "info-enters-again" "INFO waits for a keyspace that its own connection keeps from who flushes it." in server,
    SessionToldEarly "session-told-early" "Who names a session is told a serial number that a power loss can take back." in server,
    SessionEndedFirst "session-ended-first" "A connection that asks for a session which another has is left without its own." in server,
    ResetForgetsWrites "reset-forgets-writes" "RESET makes a connection forget that what it has written may not be durable." in server,
    LostWithOthers "lost-with-others" "All writes of a pipeline are answered as lost if the last one is." in server,
    ScanHoldsValues "scan-holds-values" "SCAN holds the values of the keys that it tells." in server,
    ScanWalksOn "scan-walks-on" "SCAN goes on until it has as many keys as it was asked for, however many others it meets." in server,
    KeysHoldFlushes "keys-hold-flushes" "KEYS and its like stay in the keyspace, so that flushes wait for them, and everybody for flushes." in server,
    QueueHalfCounted "queue-half-counted" "What waits for EXEC counts without the memory that it takes to tell commands apart." in server,
    MapsUnbounded "maps-unbounded" "Flushes take new maps however many are still to be emptied." in server,
    RepliesHeld "replies-held" "The buffer for replies to who has sent half a request is kept." in server,
    PlacesHeld "places-held" "A connection keeps the places of the most arguments that it ever sent." in server,
    InputHeld "input-held" "A connection that waits for the rest of a request keeps a buffer for the largest that it ever sent." in server,
    KeepaliveNotSet "keepalive-not-set" "A connection whose client has vanished stays for ever." in server,
    BrowserAnswered "browser-answered" "The lines of a request of HTTP are commands like others." in server,
    CommitInTwoVersions "commit-in-two-versions" "The last write of a transaction of several gets the next version.",
}

#[cfg(feature = "planted-bugs")]
static PLANTED: std::sync::OnceLock<Bug> = std::sync::OnceLock::new();

/// Makes one mistake active, for the rest of the process.
///
/// # Panics
/// If one is active already.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Bug) {
    PLANTED.set(bug).expect("one bug at a time");
}

/// True if this mistake is to be made.
#[cfg(feature = "planted-bugs")]
#[inline]
pub fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(&bug)
}

/// True if this mistake is to be made: never, without the feature `planted-bugs`.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}
