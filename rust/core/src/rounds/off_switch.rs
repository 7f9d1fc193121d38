//! [`OffSwitch`]: ends speculation where it does not pay.

use super::RoundCounters;

/// Watches what rounds count, and is off for good once they draw too few codes.
///
/// After every [`OffSwitch::ROUNDS`] rounds or more it compares the codes per round since it last looked with the number
/// below which the plain loop is faster. Codes do not depend on it.
#[derive(Clone, Debug)]
pub struct OffSwitch {
    off_below: f64,
    /// Since it last looked.
    recent: RoundCounters,
    /// Codes per round when it went off.
    found: Option<f64>,
}

impl OffSwitch {
    /// Rounds between two looks.
    pub const ROUNDS: u64 = 256;

    /// A switch that is on, until rounds draw fewer codes than `off_below`.
    pub fn new(off_below: f64) -> Self {
        Self { off_below, recent: RoundCounters::default(), found: None }
    }

    /// Takes in what was counted since the last call.
    pub fn add(&mut self, counted: RoundCounters) {
        self.recent += counted;
        if self.recent.rounds < Self::ROUNDS {
            return;
        }
        let codes_per_round = self.recent.codes as f64 / self.recent.rounds as f64;
        if self.is_on() && codes_per_round < self.off_below {
            self.found = Some(codes_per_round);
        }
        self.recent = RoundCounters::default();
    }

    /// Whether to speculate.
    pub const fn is_on(&self) -> bool {
        self.found.is_none()
    }

    /// Codes per round below which it goes off.
    pub const fn off_below(&self) -> f64 {
        self.off_below
    }

    /// Codes per round that it found when it went off; `None` while it is on.
    pub const fn found(&self) -> Option<f64> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(rounds: u64, codes: u64) -> RoundCounters {
        RoundCounters { rounds, codes, ..RoundCounters::default() }
    }

    #[test]
    fn it_looks_after_enough_rounds_and_stays_off() {
        let mut switch = OffSwitch::new(1.5);
        switch.add(counted(255, 255));
        assert!(switch.is_on());
        switch.add(counted(1, 1));
        assert_eq!((switch.is_on(), switch.found()), (false, Some(1.0)));
        switch.add(counted(1000, 8000));
        assert_eq!((switch.is_on(), switch.found()), (false, Some(1.0)));
    }

    #[test]
    fn only_rounds_since_the_last_look_count() {
        let mut switch = OffSwitch::new(1.5);
        switch.add(counted(10_000, 80_000));
        assert!(switch.is_on());
        switch.add(counted(256, 383));
        assert!(!switch.is_on());
    }

    #[test]
    fn the_break_even_itself_is_enough_and_zero_never_switches() {
        let mut switch = OffSwitch::new(1.5);
        switch.add(counted(256, 384));
        assert!(switch.is_on());
        let mut switch = OffSwitch::new(0.0);
        switch.add(counted(256, 0));
        assert!(switch.is_on());
    }
}
