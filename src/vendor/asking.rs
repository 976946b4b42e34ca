//! Questions to vendors, each with its deadline: for the kubelet's room, and for whoever takes the machine
//! down.

use std::{collections::BTreeMap, time::Duration};

use tokio::{sync::oneshot, time::timeout};

use super::{
    VendorsHandle,
    api::v1::{self as api, answer, question},
    limits::{PRE_START, PREFERRED},
    messages::{Ask, millis},
    paths::Bounds,
    recipe::{self, Texts},
    room::Desk,
};
use crate::device::{
    Inventory, Resource,
    allocation::{self, Wish},
    answer::{Answer, AnswerError, Answerer, Asked},
    source::Source,
};

/// A vendor's own words are shown in the pod's events; no more of them.
const LONGEST_WORDS: usize = 1024;

/// What became of an order to one vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obeyed {
    /// It did as it was told.
    Done,
    /// It is not connected, so there is nobody who could hold the hardware in its name.
    Away,
    /// It said no, in its words.
    Refused(String),
    /// It has not answered in time.
    TooLate,
}

/// One vendor, and a resource of its that the question is about.
struct Asking<'a> {
    desk: Desk,
    source: &'a Source,
}

impl VendorsHandle {
    /// Tells every vendor to let go of its hardware, and waits until each did, or `deadline` is over. Those
    /// who connect later are told then.
    pub async fn quiesce(&self, why: &str, deadline: Duration) -> BTreeMap<String, Obeyed> {
        let asked = question::Asked::Quiesce(api::Quiesce {
            why: why.to_owned(),
        });
        self.quiesced.send_replace(Some(why.to_owned()));
        self.order(asked, deadline).await
    }

    /// Whether vendors were told to let go, and not yet that they may go on.
    pub fn are_quiesced(&self) -> bool {
        self.quiesced.borrow().is_some()
    }

    /// Tells every vendor that it may use its hardware again, and waits as [`VendorsHandle::quiesce`] does.
    pub async fn resume(&self, deadline: Duration) -> BTreeMap<String, Obeyed> {
        self.quiesced.send_replace(None);
        let asked = question::Asked::Resume(api::Resume {});
        self.order(asked, deadline).await
    }

    /// All are told at once; each has the whole deadline.
    async fn order(&self, asked: question::Asked, deadline: Duration) -> BTreeMap<String, Obeyed> {
        let desks = self.desks();
        let mut waiting = Vec::new();
        for (name, desk) in desks.iter() {
            waiting.push((name, put(desk, asked.clone(), deadline)));
        }
        let end = tokio::time::Instant::now() + deadline;
        let mut obeyed = BTreeMap::new();
        for (name, answer) in waiting {
            let answer = match answer {
                None => Obeyed::Away,
                Some(answer) => match tokio::time::timeout_at(end, answer).await {
                    Err(_) => Obeyed::TooLate,
                    Ok(Ok(Ok(answer::Answer::Done(_)))) => Obeyed::Done,
                    Ok(Ok(Ok(answer::Answer::Error(why)))) => Obeyed::Refused(words(&why)),
                    Ok(Ok(Ok(_))) => Obeyed::Refused("it answered another question".to_owned()),
                    Ok(Ok(Err(_)) | Err(_)) => Obeyed::Away,
                },
            };
            obeyed.insert(name.clone(), answer);
        }
        obeyed
    }

    fn asking<'a>(&self, source: &'a Source) -> Result<Asking<'a>, AnswerError> {
        let name = match source {
            Source::Vendor(name) => name.as_str(),
            Source::File(_) | Source::Plugin(_) => "",
        };
        match self.desks().get(name).cloned() {
            Some(desk) => Ok(Asking { desk, source }),
            None => Err(AnswerError::Away {
                by: source.clone(),
                why: "no file declares it".to_owned(),
            }),
        }
    }
}

/// A vendor's words as they are shown: not too long, one line.
fn words(given: &str) -> String {
    let line = given.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut left = LONGEST_WORDS;
    line.take_while(|c| {
        let fits = left >= c.len_utf8();
        left = left.saturating_sub(c.len_utf8());
        fits
    })
    .collect()
}

type Waiting = oneshot::Receiver<Result<answer::Answer, String>>;

/// Puts a question; none when the vendor's keeper does not take it.
fn put(desk: &Desk, asked: question::Asked, deadline: Duration) -> Option<Waiting> {
    let (reply, answer) = oneshot::channel();
    let ask = Ask {
        asked,
        deadline_ms: millis(deadline),
        reply,
    };
    desk.asks.try_send(ask).ok()?;
    Some(answer)
}

impl Asking<'_> {
    fn deadline(&self) -> Duration {
        self.desk.vendor.borrow().deadline
    }

    fn away(&self, why: impl Into<String>) -> AnswerError {
        AnswerError::Away {
            by: self.source.clone(),
            why: why.into(),
        }
    }

    fn refused(&self, why: impl AsRef<str>) -> AnswerError {
        AnswerError::Refused {
            by: self.source.clone(),
            why: words(why.as_ref()),
        }
    }

    fn another(&self) -> AnswerError {
        self.refused("it answered another question")
    }

    async fn ask(
        &self,
        asked: question::Asked,
        deadline: Duration,
    ) -> Result<answer::Answer, AnswerError> {
        let waiting = put(&self.desk, asked, deadline);
        let waiting = waiting.ok_or_else(|| self.away("too many questions wait for it already"))?;
        match timeout(deadline, waiting).await {
            Err(_) => Err(AnswerError::TooLate {
                by: self.source.clone(),
                after: deadline,
            }),
            Ok(Ok(Ok(answer::Answer::Error(why)))) => Err(self.refused(why)),
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(why))) => Err(self.away(why)),
            Ok(Err(_)) => Err(self.away("it is no longer declared")),
        }
    }

    /// The vendor's own answer, held against the same rules as its recipes.
    async fn grant(
        &self,
        handle: &VendorsHandle,
        resource: &Resource,
        ids: &[String],
    ) -> Result<Answer, AnswerError> {
        let asked = question::Asked::Allocate(api::Allocate {
            resource: resource.name.to_string(),
            devices: ids.to_vec(),
        });
        let answer::Answer::Recipe(recipe) = self.ask(asked, self.deadline()).await? else {
            return Err(self.another());
        };
        let (root, vendor) = (handle.root.clone(), self.desk.vendor.borrow().clone());
        let name = resource.name.clone();
        let check = move || {
            let mut bounds = Bounds::new(Some(&root), &vendor, name.domain());
            recipe::check(&mut bounds, recipe, Texts::Plain, true)
        };
        match tokio::task::spawn_blocking(check).await {
            Ok(Ok(checked)) => Ok(Answer::Grant(checked.into_grant())),
            Ok(Err((_, why))) => Err(self.refused(format!("its answer is not used: {why}"))),
            Err(error) => Err(self.refused(format!("looking at its answer broke off: {error}"))),
        }
    }
}

/// The recipes of these devices, when each has one.
fn from_recipes(resource: &Resource, ids: &[String]) -> Option<Answer> {
    let has_recipe = |id: &String| {
        resource
            .find(id)
            .is_some_and(|(_, device)| device.recipe.is_some())
    };
    if !ids.iter().all(has_recipe) {
        return None;
    }
    // Whether they may be lent was asked before the vendor was.
    let grant = allocation::grant(&Inventory::default(), resource, ids).ok()?;
    Some(Answer::Grant(grant))
}

impl Answerer for VendorsHandle {
    fn allocate<'a>(&'a self, resource: &'a Resource, ids: &'a [String]) -> Asked<'a, Answer> {
        Box::pin(async move {
            let asking = self.asking(&resource.source)?;
            match asking.grant(self, resource, ids).await {
                Err(AnswerError::Away { by, why }) => {
                    from_recipes(resource, ids).ok_or(AnswerError::Away { by, why })
                }
                answer => answer,
            }
        })
    }

    fn preferred<'a>(&'a self, resource: &'a Resource, wish: Wish<'a>) -> Asked<'a, Vec<String>> {
        Box::pin(async move {
            let asking = self.asking(&resource.source)?;
            let asked = question::Asked::Preferred(api::Preferred {
                resource: resource.name.to_string(),
                available: wish.available.to_vec(),
                must: wish.must.to_vec(),
                size: u32::try_from(wish.size).unwrap_or(u32::MAX),
            });
            match asking.ask(asked, asking.deadline().min(PREFERRED)).await? {
                answer::Answer::Choice(choice) => Ok(choice.devices),
                _ => Err(asking.another()),
            }
        })
    }

    fn pre_start<'a>(&'a self, resource: &'a Resource, ids: &'a [String]) -> Asked<'a, ()> {
        Box::pin(async move {
            let asking = self.asking(&resource.source)?;
            let asked = question::Asked::PreStart(api::PreStart {
                resource: resource.name.to_string(),
                devices: ids.to_vec(),
            });
            match asking.ask(asked, asking.deadline().min(PRE_START)).await? {
                answer::Answer::Done(_) => Ok(()),
                _ => Err(asking.another()),
            }
        })
    }
}
