// The room.
import { make } from './charts.js';

export const flow = {
  mount(place) { place.append(make('p', { class: 'absent', text: 'This room is being furnished.' })); },
  show() {},
  hide() {},
};
