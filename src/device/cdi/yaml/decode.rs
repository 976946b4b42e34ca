//! A serde deserializer for the node tree. In a struct a null field counts as absent; in a list the
//! element type decides about nulls.

use std::{collections::BTreeSet, rc::Rc};

use serde::{
    de::{
        DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
        value::{Error, StrDeserializer},
    },
    forward_to_deserialize_any,
};

use super::{Entry, Node, Value, scalar::Meaning};

pub(super) struct Decoder<'n>(pub(super) &'n Node);

impl Decoder<'_> {
    fn other(&self, wanted: &str) -> Error {
        let found = match &self.0.value {
            Value::Scalar(scalar) if scalar.meaning == Meaning::Null => "nothing".to_owned(),
            Value::Scalar(scalar) => format!("{:?}", scalar.text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        };
        at(self.0, &format!("{found} found where {wanted} is expected"))
    }

    fn integer<T: TryFrom<i128>>(&self) -> Result<T, Error> {
        let number = match &self.0.value {
            Value::Scalar(scalar) => scalar.integer(),
            _ => None,
        };
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.other("an integer in the field's range"))
    }
}

fn at(node: &Node, message: &str) -> Error {
    Error::custom(format!("line {}: {message}", node.line))
}

fn is_null(node: &Node) -> bool {
    matches!(&node.value, Value::Scalar(scalar) if scalar.meaning == Meaning::Null)
}

/// The fields of a map, each with its key node; fields that `<<` merges in come last.
type Fields<'n> = Vec<(&'n Node, &'n str, &'n Node)>;

/// Adds the fields of `map` that are not in `seen`.
fn collect<'n>(
    map: &'n [Entry],
    seen: &mut BTreeSet<&'n str>,
    fields: &mut Fields<'n>,
) -> Result<(), Error> {
    let mut merged = None;
    for (key, value) in map {
        let Value::Scalar(name) = &key.value else {
            return Err(at(key, "a key must be a scalar, not a list or a map"));
        };
        match name.meaning {
            Meaning::Merge => merged = Some(value),
            Meaning::Null => {}
            _ if seen.insert(&name.text) => fields.push((key, &name.text, value)),
            _ => {}
        }
    }
    let Some(merged) = merged else {
        return Ok(());
    };
    let no_map = || at(merged, "merge key << requires a map");
    match &merged.value {
        Value::Map(map) => collect(map, seen, fields),
        Value::List(maps) => maps.iter().try_for_each(|one| match &one.value {
            Value::Map(map) => collect(map, seen, fields),
            _ => Err(no_map()),
        }),
        Value::Scalar(_) => Err(no_map()),
    }
}

impl<'n> Decoder<'n> {
    fn fields(&self) -> Result<Fields<'n>, Error> {
        let Value::Map(map) = &self.0.value else {
            return Err(self.other("a map"));
        };
        let mut fields = Vec::with_capacity(map.len());
        collect(map, &mut BTreeSet::new(), &mut fields)?;
        Ok(fields)
    }
}

impl<'n> Deserializer<'n> for Decoder<'n> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'n>>(self, _: V) -> Result<V::Value, Error> {
        Err(self.other("another type"))
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match is_null(self.0) {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.value {
            Value::Scalar(scalar) if scalar.meaning != Meaning::Null => {
                visitor.visit_borrowed_str(&scalar.text)
            }
            _ => Err(self.other("a text")),
        }
    }

    fn deserialize_i64<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(self.integer()?)
    }

    fn deserialize_u32<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u32(self.integer()?)
    }

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        let flag = match &self.0.value {
            Value::Scalar(scalar) => scalar.flag(),
            _ => None,
        };
        visitor.visit_bool(flag.ok_or_else(|| self.other("true or false"))?)
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.value {
            Value::List(items) => visitor.visit_seq(Items(items.iter())),
            _ => Err(self.other("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Entries::of(self.fields()?))
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut fields = self.fields()?;
        // An unknown field is kept even if it is null, so that it is refused.
        fields.retain(|(_, name, value)| !is_null(value) || !known.contains(name));
        visitor.visit_map(Entries::of(fields))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'n>>
        i8 i16 i32 i128 u8 u16 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct newtype_struct
        tuple tuple_struct enum identifier ignored_any
    }
}

struct Items<'n>(std::slice::Iter<'n, Rc<Node>>);

impl<'n> SeqAccess<'n> for Items<'n> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let next = self.0.next();
        next.map(|item| seed.deserialize(Decoder(item))).transpose()
    }
}

struct Entries<'n> {
    fields: std::vec::IntoIter<(&'n Node, &'n str, &'n Node)>,
    value: Option<&'n Node>,
}

impl<'n> Entries<'n> {
    fn of(fields: Fields<'n>) -> Self {
        Self {
            fields: fields.into_iter(),
            value: None,
        }
    }
}

impl<'n> MapAccess<'n> for Entries<'n> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some((key, name, value)) = self.fields.next() else {
            return Ok(None);
        };
        self.value = Some(value);
        let name: StrDeserializer<'_, Error> = serde::de::IntoDeserializer::into_deserializer(name);
        let known = seed.deserialize(name);
        known.map(Some).map_err(|error| at(key, &error.to_string()))
    }

    fn next_value_seed<S: DeserializeSeed<'n>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = self.value.take();
        let value = value.ok_or_else(|| Error::custom("a value without a key"))?;
        seed.deserialize(Decoder(value))
    }
}
