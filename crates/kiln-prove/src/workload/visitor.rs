//! A session that comes and goes, and is forgotten at times.

use kiln::{Level, Result, SessionInfo};

use super::{SESSIONS, Shift, TELLERS, end};
use crate::workload::history::{History, Writes};

/// Its number.
const VISITOR: usize = TELLERS;

impl Shift<'_> {
    /// The visitor does something, or is forgotten. Then all sessions are listed.
    pub(super) fn visit(&mut self) -> Result<()> {
        if self.random.one_in(2) {
            self.forget_visitor()?;
        }
        if self.random.one_in(2) {
            self.receive_visitor()?;
        }
        self.list_sessions()
    }

    fn forget_visitor(&mut self) -> Result<()> {
        let (id, serial) = (SESSIONS[VISITOR], self.history.serial_at(VISITOR, u64::MAX));
        if self.random.one_in(4) {
            let commit = self.db.forget_session_at(id, serial + 1)?;
            assert!(
                !commit.forget(),
                "C7: a session was forgotten at a serial number that it has not come to"
            );
        }
        let commit = match self.random.one_in(2) {
            true => self.db.forget_session(id)?,
            false => self.db.forget_session_at(id, serial)?,
        };
        let version = commit.version().number();
        // Serial numbers begin with 1.
        let (was_there, receipt) = commit.fast();
        assert_eq!(was_there, serial > 0, "C7: the visitor was at {serial}");
        if was_there {
            self.history.commit(version, Writes::new(), Some((VISITOR, 0)));
            self.receipts.push((version, receipt));
        }
        Ok(())
    }

    fn receive_visitor(&mut self) -> Result<()> {
        let expected = self.history.serial_at(VISITOR, u64::MAX);
        let session = self.db.session(SESSIONS[VISITOR])?;
        let (recovered, durable) = (session.recovered_serial(), session.durable_serial()?);
        assert_eq!(recovered, expected, "C7: the visitor's serial number");
        // Nobody is told of who had the name before.
        assert!(durable <= recovered, "C7: of {recovered} operations {durable} are durable");
        for serial in 1..=1 + self.random.below(2) as u64 {
            let commit = session.transact(|_| Ok(()))?;
            let session = Some((VISITOR, expected + serial));
            self.history.commit(commit.version().number(), Writes::new(), session);
            end(commit, self.history, &mut self.receipts, &mut self.random, self.profile)?;
        }
        Ok(())
    }

    /// C7: the list has the tellers, which are open, and the visitor if something of it is durable; each with what it has come to.
    fn list_sessions(&mut self) -> Result<()> {
        let listed = self.db.sessions().collect::<Result<Vec<_>>>()?;
        let horizon = self.db.horizon(Level::LOCAL).number();
        let expected = (0..SESSIONS.len()).map(|number| info(self.history, number, horizon));
        // What is not durable may be there, and be listed, or not.
        let (open, visitor): (Vec<_>, Vec<_>) = listed.iter().map(told).partition(|told| told.3);
        let (tellers, wanted): (Vec<_>, Vec<_>) = expected.partition(|told| told.3);
        assert_eq!(open, tellers, "C7: the list of sessions at horizon {horizon}");
        let wanted: Vec<_> = wanted.into_iter().filter(|told| told.1 > 0).collect();
        let may_be_missing = wanted.iter().all(|told| told.2 == 0);
        assert!(
            visitor == wanted || visitor.is_empty() && may_be_missing,
            "C7: the visitor is listed as {visitor:?}, and not as {wanted:?}, at horizon {horizon}"
        );
        Ok(())
    }
}

/// What a list says: id, serial number, the durable one, and whether it is open.
type Told = (Vec<u8>, u64, u64, bool);

fn told(info: &SessionInfo) -> Told {
    (info.id.clone(), info.serial, info.durable_serial, info.is_open)
}

/// What it is to say.
fn info(history: &History, number: usize, horizon: u64) -> Told {
    let (serial, durable) = (history.serial_at(number, u64::MAX), history.serial_at(number, horizon));
    (SESSIONS[number].as_bytes().to_vec(), serial, durable, number < TELLERS)
}
